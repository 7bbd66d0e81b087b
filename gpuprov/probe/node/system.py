"""Collectors of the operating system: release, kernels, files, environment, state after a boot."""

import glob
import hashlib
import json
import os
import re
import stat
import sys

from gpuprov_locks import name_of, running

from gpuprov.probe.node.base import (
    FRESH_UNIT,
    Failed,
    blot_value,
    bytes_of_users,
    closed,
    collector,
    dropped_in,
    find_program,
    lines_in,
    lines_of,
    link_name,
    names_in,
    read,
    read_of_users,
    read_or_none,
    redact,
    run,
    run_anyway,
    systemd_lines,
    text_in,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from gpuprov.probe.node.base import Values

HASH_LIMIT = 16 * 1024 * 1024
"""Maximum size in bytes of a file that is hashed."""
REGISTRIES = re.compile(r"^[ \t]*\[[^\n]*\bregistry\b[^\n]*\n(?:(?![ \t]*\[).*\n?)*", re.M)
"""Tables of registries in the output of `containerd config dump`."""


@collector(seconds=5)
def system(parameters: "Values") -> "Any":
    """Return release, kernel, boot, uptime in seconds, and version and user of the interpreter."""
    uname = os.uname()
    return {
        "os_release": read_or_none("/etc/os-release") or read("/usr/lib/os-release"),
        "machine": uname.machine,
        "kernel": uname.release,
        "cmdline": redact(read("/proc/cmdline").strip()),
        "boot_id": read("/proc/sys/kernel/random/boot_id").strip(),
        "uptime": float(read("/proc/uptime").split()[0]),
        "python": sys.version.split()[0],
        "uid": os.getuid(),
    }


@collector(seconds=5)
def kernels(parameters: "Values") -> "Any":
    """Return the releases of kernels with modules, image and headers, their compilers, and GRUB's settings.

    GRUB's settings are GRUB_DEFAULT with its file, the default in grub.cfg, and the environment block.
    """
    releases = names_in("/lib/modules")
    images = (re.fullmatch(r"vmlinu[xz]-(.+)", name) for name in names_in("/boot"))
    environments = ("/boot/grub/grubenv", "/boot/grub2/grubenv")
    settings = ["/etc/default/grub", *sorted(glob.glob("/etc/default/grub.d/*.cfg"))]
    configs = ("/boot/grub/grub.cfg", "/boot/grub2/grub.cfg")
    config = next(filter(None, map(read_or_none, configs)), None)
    return {
        "modules": [name for name in releases if os.path.isfile("/lib/modules/" + name + "/modules.dep")],
        "boot": [image.group(1) for image in images if image and "rescue" not in image.group(1)],
        "headers": [name for name in releases if os.path.isfile("/lib/modules/" + name + "/build/Makefile")],
        "compilers": {name: _compiler(name) for name in releases},
        "grub_default": [
            [path, value]
            for path in settings
            for value in re.findall(r"^\s*GRUB_DEFAULT=[\"']?([^\"'\n]*)", read_or_none(path) or "", re.M)
        ],
        "grub_config": config and re.findall(r"^\s*set default=\"?([^\"\n]*)", config, re.M),
        "grub_arguments": _arguments(config or "") or _arguments(_entries()),
        "boot_entries": os.path.isdir("/boot/loader/entries") and not _arguments(config or ""),
        "grub_environment": next(filter(None, map(read_or_none, environments)), None),
        "held_back": text_in("/var/lib/gpuprov/held-back-kernel").partition(" ")[0],
    }


def _entries() -> str:
    """Return the entries of /boot/loader as lines of a grub.cfg: `linux /boot/vmlinuz-… root=… ro`."""
    found = []
    for path in sorted(glob.glob("/boot/loader/entries/*.conf")):
        values = dict(line.partition(" ")[::2] for line in lines_in(path))
        image = values.get("linux", "").strip().rpartition("/")[2]
        found.append("linux /{} {}".format(image, values.get("options", "")))
    return "\n".join(found)


def _arguments(config: str) -> "dict[str, str]":
    """Return kernel -> words about modules of the command line in its first entry of a grub.cfg."""
    found = {}  # type: dict[str, str]
    for line in config.splitlines():
        words = line.split()
        if len(words) > 1 and words[0].startswith("linux") and "/vmlinuz-" in words[1]:
            kept = [word for word in words[2:] if re.match(r"module_blacklist=|modprobe\.|nvidia", word)]
            found.setdefault(words[1].partition("/vmlinuz-")[2], " ".join(kept))
    return found


def _compiler(release: str) -> "str | None":
    """Return the compiler that built a kernel, from the kernel's configuration; None without it."""
    for path in ("/boot/config-" + release, "/lib/modules/" + release + "/config"):
        found = re.search(r'^CONFIG_CC_VERSION_TEXT="(.*)"$', read_or_none(path) or "", re.M)
        if found:
            return found.group(1)
    return None


@collector(seconds=5)
def sysctls(parameters: "Values") -> "Any":
    """Return values of the requested sysctls, with single spaces; null for one that cannot be read."""
    values = {}
    for name in parameters["sysctls"]:
        # A dot inside an interface's name is written as a slash, as in sysctl(8).
        text = read_or_none("/proc/sys/" + name.translate({ord("."): "/", ord("/"): "."}), 4096)
        values[name] = None if text is None else " ".join(text.split())
    return values


@collector(seconds=5)
def hugepages(parameters: "Values") -> "Any":
    """Return the kernel's setting of transparent huge pages, `always [madvise] never`.

    Null if it has none.
    """
    return {"transparent": read_or_none("/sys/kernel/mm/transparent_hugepage/enabled", 4096)}


LIMITS_CONF = "/etc/security/limits.conf"
PAM_PACKAGES = (
    ("dpkg-query", "--show", "--showformat=${Version}", "libpam-modules"),
    ("rpm", "--query", "--queryformat=%{VERSION}", "pam"),
)
"""Commands that print the version of Linux-PAM, by package manager."""


def _reads_limits() -> bool:
    """Return whether pam_limits reads any file: without limits.conf it fails before Linux-PAM 1.5.3, or an
    unknown version.

    Source: pull request 418 of linux-pam/linux-pam.
    """
    if os.path.exists(LIMITS_CONF):
        return True
    for command in PAM_PACKAGES:
        said = run_anyway(*command)[1] if find_program(command[0]) else ""
        found = re.match(r"(?:\d+:)?(\d+)\.(\d+)(?:\.(\d+))?", said)
        if found:
            return tuple(int(part or 0) for part in found.groups()) >= (1, 5, 3)
    return False


@collector(seconds=10)
def limits(parameters: "Values") -> "Any":
    """Return lines of pam_limits' files in reading order, and the limits of services with their lines.

    The limits are those of a unit that systemd loads now: systemd's defaults, changed by drop-ins for all
    services. Both are reported by the names of the defaults.
    """
    paths = [LIMITS_CONF] + sorted(glob.glob("/etc/security/limits.d/*.conf")) if _reads_limits() else []
    rows = [list(row) for path in paths for row in lines_of(path)]
    wanted = [
        name + kind for name in ("MEMLOCK", "NOFILE", "STACK", "NPROC", "CORE") for kind in ("", "Soft")
    ]
    shown = run("systemctl", "show", FRESH_UNIT, *["--property=Limit" + name for name in wanted])
    lines = [list(row) for row in systemd_lines() if row[1].startswith("DefaultLimit")]
    for path in dropped_in("systemd/system/service.d"):
        lines += [[place, "Default" + text] for place, text in lines_of(path) if text.startswith("Limit")]
    return {
        "pam": rows,
        "systemd": re.sub(r"(?m)^Limit", "DefaultLimit", shown),
        "systemd_lines": lines,
    }


@collector(seconds=5)
def environment(parameters: "Values") -> "Any":
    """Return file -> the requested variables that it sets for logins, of /etc/environment, /etc/profile and
    their folders; secrets are hidden.
    """
    wanted = re.compile(parameters["environment"])
    assignment = re.compile(r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=(.*)$", re.M)
    paths = ["/etc/environment", "/etc/profile"]
    paths += sorted(glob.glob("/etc/environment.d/*.conf") + glob.glob("/etc/profile.d/*.sh"))
    found = {}
    for path in paths:
        pairs = assignment.findall(read_or_none(path) or "")
        values = {
            name: blot_value(value.strip().strip("\"'"), name) for name, value in pairs if wanted.match(name)
        }
        if values:
            found[path] = values
    return found


@collector(seconds=10)
def files(parameters: "Values") -> "Any":
    """Return kind, mode, owner and hash of the requested files, also of absent ones; never their contents.

    See `_file`.
    """
    return [_file(path) for path in parameters["files"]]


def _file(path: str) -> "Values":
    """Return the row of a file; `kind` is `absent`, `file`, `directory`, `link` or `other`.

    `leads_to` is the path with links resolved. The hash of a link of root's is that of the file to which it
    leads; links of other users, folders and devices, unreadable and large files have none (None).
    """
    row = dict(path=path, kind="absent", mode="", owner="", group="", size=0, sha256=None, target=None)  # type: Values
    row["leads_to"] = os.path.realpath(path)
    try:
        status = os.lstat(path)
    except OSError:
        return row
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
    row["kind"] = next((kind for test, kind in kinds if test(status.st_mode)), "other")
    row["mode"] = f"{stat.S_IMODE(status.st_mode):04o}"
    row["owner"], row["group"] = _owner(status)
    row["size"] = status.st_size
    if row["kind"] == "link":
        row["target"] = os.readlink(path)
    row["sha256"] = _checksum(path)
    return row


def _checksum(path: str) -> "str | None":
    """Return the SHA-256 of a regular file of up to `HASH_LIMIT` bytes, or None; root's links count."""
    content = bytes_of_users(path, HASH_LIMIT + 1)
    return None if content is None or len(content) > HASH_LIMIT else hashlib.sha256(content).hexdigest()


def _owner(status: os.stat_result) -> "list[str]":
    """Return names or numbers of owner and group, from files: a query to a directory service may block."""
    names = []
    for path, number in (("/etc/passwd", status.st_uid), ("/etc/group", status.st_gid)):
        rows = (line.split(":") for line in lines_in(path))
        names.append(next((row[0] for row in rows if len(row) > 2 and row[2] == str(number)), str(number)))
    return names


@collector(seconds=10)
def state(parameters: "Values") -> "Any":
    """Return the state after the last installation or boot.

    Whether a reboot is required, Secure Boot, cloud-init's state, remains of other installers, free MiB, GPU
    device nodes, and the process that holds the package manager's lock (null: no process).
    """
    marks = [path for path in ("/run/reboot-required", "/var/run/reboot-required") if os.path.exists(path)]
    leftovers = ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-installer", "/usr/local/bin/nvidia-uninstall")
    return {
        "reboot_required": bool(marks),
        "reboot_packages": sorted(set((read_or_none(marks[0] + ".pkgs") or "").split())) if marks else [],
        "secure_boot": _secure_boot(),
        "cloud_init": _cloud_init(),
        "foreign_drivers": [path for path in leftovers if os.path.exists(path)],
        "free_mib": _free(("/", "/boot", "/usr", "/var")),
        "device_nodes": sorted(glob.glob("/dev/nvidia*")),
        "package_manager_busy": lock_holder(),
    }


def _secure_boot() -> "bool | None":
    """Return whether Secure Boot is on, from the firmware's variable; None without EFI.

    The variable has four bytes of attributes, then 0 or 1 (UEFI specification 3.3).
    """
    if not os.path.isdir("/sys/firmware/efi"):
        return None
    for path in glob.glob("/sys/firmware/efi/efivars/SecureBoot-*"):
        with open(path, "rb") as file:
            return file.read(5)[4:] == b"\x01"
    return None


def _cloud_init() -> str:
    """Return cloud-init's state (`disabled`, `error`, `done`, `running`; "" without it) from its own files.

    `cloud-init status` reads the same files and takes 0.3 s longer.
    """
    if os.path.exists("/run/cloud-init/disabled"):
        return "disabled"
    result = read_or_none("/run/cloud-init/result.json")
    if result is not None:
        return "error" if json.loads(result)["v1"]["errors"] else "done"
    return "running" if os.path.exists("/run/cloud-init/status.json") else ""


def _free(folders: "Iterable[str]") -> "dict[str, int]":
    """Return folder -> free space for root in MiB, without folders that do not exist."""
    free = {}
    for folder in folders:
        if os.path.isdir(folder):
            space = os.statvfs(folder)
            free[folder] = space.f_bfree * space.f_frsize // (1024 * 1024)
    return free


def lock_holder() -> "str | None":
    """Return the process that holds a lock of a package manager, `dnf (4711)`.

    None if no process does, and without root's rights.
    """
    pid = running()
    return None if pid is None else name_of(pid)


@collector(seconds=5)
def daemon_json(parameters: "Values") -> "Any":
    """Return Docker's configuration, with secrets hidden; null if it does not exist.

    Raises:
        Failed: it is not JSON.
    """
    text = read_or_none("/etc/docker/daemon.json")
    if text is None or not text.strip():
        return {"value": None}
    try:
        return {"value": blot_value(json.loads(text))}
    except ValueError as error:
        raise Failed(f"/etc/docker/daemon.json is not JSON: {error}") from None


@collector(seconds=10)
def containerd(parameters: "Values") -> "Any":
    """Return containerd's effective configuration (the default without config.toml) without registries, which
    may contain secrets.

    Null if it is not requested or containerd is not installed.
    """
    if not parameters["containerd"] or not find_program("containerd"):
        return {"dump": None}
    shown = "dump" if os.path.exists("/etc/containerd/config.toml") else "default"
    return {"dump": redact(REGISTRIES.sub("", run("containerd", "config", shown)))}


@collector(seconds=5)
def nccl(parameters: "Values") -> "Any":
    """Return NCCL's system-wide and users' settings, and path -> version in the name of its libraries.

    `conf` is null without /etc/nccl.conf, and `closed` if only root can read it; `own` has the files of root,
    new users (/etc/skel) and the login.
    """
    patterns = ("/usr/lib/*-linux-gnu/", "/usr/lib64/", "/usr/local/lib/", "/usr/local/cuda*/lib64/")
    libraries = {}
    for pattern in patterns:
        for path in sorted(glob.glob(pattern + "libnccl.so.2")):
            libraries[path] = (link_name(path) or "").partition("libnccl.so.")[2]
    conf = read_or_none("/etc/nccl.conf")
    homes = ["/root", "/etc/skel", os.path.expanduser("~" + parameters["login"])]
    own = {home + "/.nccl.conf": read_of_users(home + "/.nccl.conf") for home in homes}
    return {
        "conf": None if conf is None else redact(conf),
        "closed": closed("/etc/nccl.conf") is not None,
        "own": {path: redact(text) for path, text in own.items() if text is not None},
        "libraries": libraries,
    }
