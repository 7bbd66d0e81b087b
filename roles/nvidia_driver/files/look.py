"""What the role nvidia_driver reads of a node before and after it acts: one JSON document. Changes nothing.

Standard library only; runs on the node from stdin. Argument: {"modules": [names that a module
`nvidia` may have on disk]}.

    {"kernel": {"running": "6.1.0-56-amd64", "next": "6.1.0-56-amd64" or null},
     "kernels": {"6.1.0-56-amd64": {"module": "535.309.01" or null, "flavour": "proprietary", "dkms": true}},
     "packages": {"dkms": "3.0.10-8+deb12u1"}, "broken": ["nvidia-kernel-dkms"], "held": ["libcuda1"],
     "sources": ["nvidia-current/535.309.01"],
     "failed_builds": [{"source": "nvidia-current/550.163.01", "kernel": "6.12.117+deb13-amd64",
                        "error": "…"}]}
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

C_LOCALE = {**os.environ, "LC_ALL": "C.UTF-8"}


def output(*argv: str) -> str:
    """What a program says; nothing where the node does not have it or it has nothing to say."""
    if not shutil.which(argv[0]):
        return ""
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=C_LOCALE).stdout


def packages() -> dict:
    """Everything that is unpacked or better, by the name that apt takes; apart: what is half done or held."""
    form = "${db:Status-Abbrev}\t${binary:Package}\t${Version}\n"
    native = ":" + output("dpkg", "--print-architecture").strip()
    found: dict = {"packages": {}, "broken": [], "held": []}
    for line in output("dpkg-query", "-W", "-f", form).splitlines():
        (wanted, state, *_), name, version = line.split("\t")
        name = name.removesuffix(native)
        if wanted == "h":
            found["held"].append(name)
        if state not in "nc":
            found["packages"][name] = version
        if state in "HUF":
            found["broken"].append(name)
    return found


def next_kernel() -> str | None:
    """The kernel that the boot loader takes by itself: the newest one installed."""
    if not shutil.which("linux-version"):
        return None
    names = output("linux-version", "list").split()
    newest = subprocess.run(
        ["linux-version", "sort"], input="\n".join(names), capture_output=True, text=True, check=True
    )
    return newest.stdout.split()[-1] if names else None


def module(kernel: str, names: list[str]) -> dict:
    """Version and flavour of the module on disk, whatever name the distribution gives it."""
    for name in names:
        version = output("modinfo", "-k", kernel, "-F", "version", name).strip()
        if version:
            # NVIDIA's open modules are "Dual MIT/GPL", the proprietary ones "NVIDIA".
            licence = output("modinfo", "-k", kernel, "-F", "license", name)
            return {"module": version, "flavour": "open" if "GPL" in licence else "proprietary"}
    return {"module": None, "flavour": None}


def dkms_installed() -> set[str]:
    """Kernels for which DKMS has installed a module of the driver."""
    # nvidia-current/535.309.01, 6.1.0-56-amd64, x86_64: installed — before DKMS 3 a comma for the slash
    line = re.compile(r"nvidia[\w-]*(?:/|, )[\d.]+, ([^,]+), \S+: installed")
    return {found.group(1) for found in map(line.match, output("dkms", "status").splitlines()) if found}


def sources() -> list[str]:
    """The driver's sources on the node as DKMS names them: `name/version`."""
    folders = sorted(path.parent.name for path in Path("/usr/src").glob("nvidia*/dkms.conf"))
    return ["/".join(folder.rsplit("-", 1)) for folder in folders]


def failed_build(log: str) -> dict | None:
    """What a log of DKMS says of a build that failed: whose, for which kernel, the compiler's first error."""
    # DKMS make.log for nvidia-current-535.309.01 for kernel …; since 3.2 a version of DKMS and a slash
    head = re.match(r"DKMS .*\bfor (\S+)[-/]([\d.]+) for kernel (\S+)", log)
    error = re.search(r"(?m)^(?:\S*/)?(\S+:.*\berror: .*)$", log)
    if not head or not error:
        return None
    name, version, kernel = head.groups()
    return {"source": f"{name}/{version}", "kernel": kernel, "error": error.group(1)}


def failed_builds() -> list[dict]:
    """The builds of the driver that DKMS has a failing log of."""
    logs = Path("/var/lib/dkms").glob("nvidia*/**/make.log")
    return list(filter(None, (failed_build(log.read_text(errors="replace")) for log in logs)))


def main() -> None:
    names = json.loads(sys.argv[1])["modules"]
    installed = dkms_installed()
    releases = sorted(path.name for path in Path("/lib/modules").glob("*"))
    look = {
        "kernel": {"running": os.uname().release, "next": next_kernel()},
        "kernels": {
            release: {**module(release, names), "dkms": release in installed} for release in releases
        },
        "sources": sources(),
        "failed_builds": failed_builds(),
        **packages(),
    }
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main()
