"""State of a node for the role preflight, as one JSON document. Waits for cloud-init and package managers.

Changes nothing. Runs on the node, with the modules of plugins/module_utils. Argument: a JSON object
`{"wait": seconds, "booted": bool, "free_mb": {path: MB}, "bystanders": [program], "driver_packages": regex,
"sources": [url or null], "ours": path, "keys": [armored text or null], "certificate": sha256 or "",
"beside": [package]}`.
If the tree is not `booted`, cloud-init, firmware and users of GPUs belong to the builder and are not read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import gpuprov_dnf
from gpuprov_apt import rejects_sources
from gpuprov_failures import Failed
from gpuprov_gpu_files import TooManyFiles, devices_in_use
from gpuprov_locks import RUN_DNF, blocker, name_of, running
from gpuprov_node import answer, database, os_release, output, run

EFI = Path("/sys/firmware/efi/efivars")
SECURE_BOOT = EFI / "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"  # UEFI global variables
KEYS = EFI / "db-d719b2cb-3d3a-4596-a3bc-dad00e67656f"
OWNER_KEYS = EFI / "MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"  # shim's, as the kernel reads it
OWNER_KEYS_WHOLE = EFI.with_name("mok-variables") / "MokListRT"  # complete; an EFI variable has a size limit
SIGNING_KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")  # DKMS's own, Ubuntu's
RUNFILE_TRACES = ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-installer")
RECORDS = Path("/var/lib/gpuprov/packages")  # written by the role packages
DISTRIBUTIONS = ("Debian", "Ubuntu")
VIRTUAL_GPU = r"(?m)^Model:\s+((?:GRID |NVIDIA )?[A-Z][\w-]{0,30}-\d{1,3}[ABCQ](?:ME|\d)?)\s*$"


OS_RELEASE = Path("/etc/os-release")
REBUILDS = {
    **dict.fromkeys(("rocky", "almalinux", "ol", "centos"), "rhel"),
    "azurelinux": "azl",
    "mariner": "cm",
    "opensuse-leap": "opensuse",
}  # as in the catalog's table of platforms


def operating_system() -> tuple[str, str]:
    """Return ID and VERSION_ID of os-release, as of a system with the same packages and as they are.

    `("rhel9.4", "rocky9.4")`, `("debian12", "debian12")`.
    """
    release = os_release(str(OS_RELEASE))
    name, version = release.get("ID", "unknown"), release.get("VERSION_ID", "")
    return REBUILDS.get(name, name) + version, name + version


def program(pid: str) -> str:
    """Return the name of a process, or its number if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return pid


def wait_for_packages(seconds: float) -> str | None:
    """Wait until no other package manager runs; return the one that still runs at the end, or None."""
    end = time.monotonic() + seconds
    while True:
        pid = running()
        if pid is None:
            return None
        if time.monotonic() >= end:
            return name_of(pid)
        time.sleep(1)


def blocked() -> str | None:
    """Return the user's process that prevents changes of rpm's database, or None."""
    pid = blocker()
    return None if pid is None else name_of(pid)


def too_full(wanted: dict) -> dict:
    """Return folder → free MB, of the folders (wanted: folder → MB) on file systems with less free space."""
    full = {}
    for folder, megabytes in wanted.items():
        there = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
        free = shutil.disk_usage(there).free // 2**20
        if free < megabytes:
            full[folder] = free
    return full


def runfile_traces() -> list[str]:
    """Return the files that only NVIDIA's runfile installer leaves: those that no package owns."""
    owner = ("dpkg-query", "-S") if shutil.which("dpkg") else ("rpm", "-q", "-f")
    return [path for path in RUNFILE_TRACES if Path(path).exists() and run(*owner, path)[0] != 0]


def moved_repositories(ours: str, keys: list) -> list[str]:
    """Return the addresses in the role's own file of sources that have a key of the lock's repositories. []
    if the file cannot be read.

    They are former addresses of these repositories, and the role repositories rewrites the file.

    Args:
        ours: path of the file.
        keys: armored keys of the lock's repositories.
    """
    known = {bare_key(key) for key in keys if key}
    try:
        text = Path(ours).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        address = re.search(r"(?m)^URIs: (\S+)$", stanza)
        key = re.search(r"(?m)^Signed-By: (.+(?:\n[ \t].*)*)", stanza)
        if address and key and bare_key(key.group(1)) in known:
            found.append(address.group(1))
    return found


def bare_key(text: str) -> str:
    """Return an armored key without spaces and lines: deb822 indents lines and writes empty ones as dots."""
    return "".join(line.strip() for line in text.splitlines() if line.strip() != ".")


def foreign_packages(pattern: str, sources: list) -> dict:
    """Return driver package → address, of other repositories than those given (None: the distribution's own).

    The origin of a version that no repository offers any more is unknown; such a package is left out. So are
    all where apt rejects its sources.

    Raises:
        Failed: apt fails otherwise, as with compressed indexes if a user has filled /tmp.
    """
    names = output("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n")
    installed = [line[4:] for line in names.splitlines() if line[1] == "i" and re.match(pattern, line[4:])]
    if not installed:
        return {}
    # ` 500 URL bookworm/main amd64 Packages`, of a flat repository ` 500 URL  Packages`
    release = re.compile(r"(?m)^ +-?\d+ (\S+ .*)Packages\n +release .*?\bo=([^,\n]*)")
    try:
        origins = dict(release.findall(answer("apt-cache", "policy")))
    except Failed:
        if rejects_sources():
            return {}
        raise

    def wanted(offer: str, url: str) -> bool:
        return any(
            url.startswith(source.rstrip("/")) if source else origins.get(offer) in DISTRIBUTIONS
            for source in sources
        )

    foreign = {}
    for part in re.split(r"(?m)^(?=\S)", answer("apt-cache", "policy", *installed))[1:]:
        name = part.split(":\n")[0]
        current = re.search(r"(?m)^ \*\*\* \S+.*\n((?: {8,}.*\n?)*)", part)
        offers = re.findall(r"-?\d+ ((\S+) .*)Packages", current.group(1)) if current else []
        if offers and not any(wanted(*offer) for offer in offers):
            foreign[name] = offers[0][1]
    return foreign


def users_of_gpus(bystanders: list[str]) -> list[str]:
    """Return the programs that hold a GPU open, `name (pid)`, except the driver's own services.

    If users have more files open than can be looked at, return the sentence that says whose.
    """
    try:
        found = devices_in_use()
    except TooManyFiles as error:
        return [str(error)]
    users = {pid for pid, names in found.items() if any(re.match(r"nvidia(\d|-uvm)", name) for name in names)}
    code, listed = run("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader", seconds=30)
    if code == 0:
        users |= set(re.findall(r"(?m)^\d+$", listed))
    named = {pid: program(pid) for pid in users}
    return sorted(f"{name} ({pid})" for pid, name in named.items() if name not in bystanders)


def virtual_gpus() -> list[str]:
    """Return the names of a guest's virtual GPUs (vGPU), as its driver has them: `NVIDIA A10-24Q`."""
    texts = [
        path.read_text(errors="replace") for path in Path("/proc/driver/nvidia/gpus").glob("*/information")
    ]
    return sorted({name for text in texts for name in re.findall(VIRTUAL_GPU, text)})


def secure_boot(certificate: str) -> dict:
    """Return whether the firmware checks signatures, and whether the key that signs the module is enrolled.

    It is the certificate with that SHA-256, or without one the key that DKMS signs with.
    """
    if not SECURE_BOOT.exists() or SECURE_BOOT.read_bytes()[-1] != 1:
        return {"on": False, "key_enrolled": False}
    enrolled = b"".join(path.read_bytes() for path in (OWNER_KEYS_WHOLE, OWNER_KEYS, KEYS) if path.exists())
    if certificate:
        return {"on": True, "key_enrolled": has(enrolled, certificate)}
    keys = [Path(key).read_bytes() for key in SIGNING_KEYS if Path(key).exists()]
    return {"on": True, "key_enrolled": any(key in enrolled for key in keys)}


def has(lists: bytes, certificate: str) -> bool:
    """Return whether lists of certificates contain one, by SHA-256; each DER sequence in them is tried."""
    for start in re.finditer(b"(?=\x30\x82)", lists):
        at = start.start()
        size = int.from_bytes(lists[at + 2 : at + 4], "big") + 4
        if hashlib.sha256(lists[at : at + size]).hexdigest() == certificate:
            return True
    return False


def unfinished() -> bool:
    """Return whether dpkg or apt must finish earlier work before it can install anything."""
    journal = any(path.name.isdecimal() for path in Path("/var/lib/dpkg/updates").iterdir())
    return journal or bool(output("dpkg", "--audit").strip()) or run("apt-get", "check", "-qq")[0] == 100


def lost() -> list[str]:
    """Return the packages that gpuprov's roles installed and that are no longer there."""
    form = "${db:Status-Status} ${Package}\n"
    rows = [line.split() for line in output("dpkg-query", "-W", "-f", form).splitlines()]
    there = {name for status, name in rows if status not in ("not-installed", "config-files")}
    ours = {name for path in RECORDS.glob("*") for name in path.read_text().split()}
    return sorted(ours - there)


def unavailable(names: list[str]) -> list[str]:
    """Return the packages that are not installed and that no enabled repository of dnf has.

    Empty if dnf cannot read its repositories: then the role repositories names the reason.

    Raises:
        Failed: rpm's database cannot be read.
    """
    there = database("rpm", "-qa", "--qf", "%{NAME}\\n", "--", *names).split()
    missing = sorted(set(names).difference(there))
    if not missing:
        return []
    every = "--setopt=*.skip_if_unavailable=0"  # a repository that does not answer is no proof
    status, said = run(*RUN_DNF, "--quiet", every, "repoquery", "--qf", "%{name}", *missing, seconds=180)
    return sorted(set(missing) - set(said.split())) if status == 0 else []


def main() -> None:
    """Print the node's state for the role's checks as JSON; wait for cloud-init and the package manager
    first.

    Raises:
        Failed: rpm's database cannot be read.
    """
    asked = json.loads(sys.argv[1])
    wait = float(asked["wait"])  # an inventory's number may be text
    booted = str(asked["booted"]) == "True"
    system, shown = operating_system()
    status, said = run("cloud-init", "status", "--wait", seconds=wait) if booted else (0, "")
    look = {
        "system": system,
        "os": shown,
        "arch": os.uname().machine,
        "cloud_init": {"finished": status != 124, "said": said.strip(". \n")},
        "package_lock": wait_for_packages(wait),
        "blocked": blocked(),
        "too_full": too_full(asked["free_mb"]),
        "secure_boot": secure_boot(asked["certificate"]) if booted else {"on": False, "key_enrolled": False},
        "gpu_users": users_of_gpus(asked["bystanders"]) if booted else [],
    }
    look["virtual"] = virtual_gpus() if booted else []
    look["runfile"] = runfile_traces()
    if shutil.which("dpkg"):
        sources = [*asked["sources"], *moved_repositories(asked["ours"], asked["keys"])]
        look["foreign"] = foreign_packages(asked["driver_packages"], sources)
        look["unfinished"] = look["package_lock"] is None and unfinished()
        look["lost"] = lost() if look["unfinished"] else []
    else:
        look["doubled"] = sorted(gpuprov_dnf.doubled())
        look["unavailable"] = unavailable(asked["beside"])
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main()
