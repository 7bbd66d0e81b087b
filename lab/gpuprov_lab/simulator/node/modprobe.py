"""Settings of modprobe's configuration, and the driver module on disk for a kernel."""

from __future__ import annotations

import re
from pathlib import Path

from .files import Files

_CONFIGURATION = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
_MODULE_NAME = re.compile(r"nvidia(-current|-tesla-\d+|-\d+)?(-open)?\.ko(\.xz|\.gz)?")


def configuration(files: Files) -> list[str]:
    """Return the lines of modprobe.d(5); a file in an earlier directory hides its namesakes in later ones."""
    chosen: dict[str, Path] = {}
    for directory in _CONFIGURATION:
        for path in sorted(files.at(directory).glob("*.conf")):
            if path.is_file():
                chosen.setdefault(path.name, path)
    text = "\n".join(path.read_text() for path in chosen.values())
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def blacklisted(files: Files, module: str) -> bool:
    """Return whether the kernel's own request for a module (by PCI id) is refused."""
    refusals = {f"blacklist {module}", f"install {module} /bin/false", f"install {module} /bin/true"}
    return any(" ".join(line.replace("-", "_").split()) in refusals for line in configuration(files))


def option(files: Files, module: str, parameter: str) -> str | None:
    """Return the value of a module's parameter at its loading, of several the last; None
    if nothing sets it.
    """
    setting = re.compile(rf"options\s+{module}\s(?:.*\s)?{parameter}=(\S+)")
    values = [match[1] for line in configuration(files) if (match := setting.match(line))]
    return values[-1] if values else None


def listed_for_boot(files: Files) -> list[str]:
    """Return the module names in the files of modules-load.d(5), with duplicates."""
    lines: list[str] = []
    for directory in ("/etc/modules-load.d", "/usr/lib/modules-load.d"):
        for path in sorted(files.at(directory).glob("*.conf")):
            if path.is_file():
                lines += path.read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith(("#", ";"))]


def booted_kernel(files: Files) -> str:
    """Return the release of the kernel that a boot starts: the one chosen by hand, or the newest in /boot, or
    ''.

    A node's `uname -r` is that of the machine it runs on, so a kernel can be simulated, not shown.
    """
    if files.kernel_choice.is_file():
        return files.kernel_choice.read_text().strip()
    releases = [path.name.removeprefix("vmlinuz-") for path in files.at("/boot").glob("vmlinuz-*")]
    return max(releases, key=_version_key, default="")


def module_file(files: Files, kernel: str) -> Path | None:
    """Return the driver module that modprobe would take for a kernel, those below `updates` first, or None.

    Debian names the file after the alternative (`nvidia-current.ko`) and has its name in an `install` line.
    """
    found = [
        path
        for path in files.at(f"/lib/modules/{kernel}").rglob("nvidia*.ko*")
        if kernel and _MODULE_NAME.fullmatch(path.name)
    ]
    wanted = [
        match[1]
        for line in configuration(files)
        if (match := re.match(r"install\s+nvidia\s+modprobe\s+-i\s+(\S+)", line))
    ]
    preferred = [path for path in found if path.name.split(".ko")[0] in wanted]
    updates_first = sorted(preferred or found, key=lambda path: ("updates" not in path.parts, path.name))
    return updates_first[0] if updates_first else None


def module_field(path: Path, field: str) -> str:
    """Return a field of a module's `.modinfo` section, as `modinfo -F` prints it, or ''."""
    content = path.read_bytes()
    if path.suffix == ".xz":
        import lzma  # slow to load, and every nvidia-smi would

        content = lzma.decompress(content)
    elif path.suffix == ".gz":
        import gzip

        content = gzip.decompress(content)
    match = re.search(rb"\0" + field.encode() + rb"=([^\0]*)\0", content)
    return match[1].decode() if match else ""


def _version_key(release: str) -> list[tuple[int, str]]:
    """Return a sort key for releases: numbers by value, and before them words."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|[a-z]+", release)]
