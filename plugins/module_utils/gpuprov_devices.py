# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of whether a device may be formatted, and whether a file system may be mounted at a path.

Runs on the node: Python 3.6 to 3.13 and its standard library.
"""

import os

from gpuprov_node import run

LABEL = "gpuprov"  # label of the file systems that the role storage makes
MEBIBYTE = 1024 * 1024
NOTHING_FOUND = 2  # blkid(8), "EXIT STATUS"
FINDMNT = ("findmnt", "--noheadings", "--raw", "--output", "TARGET,FSTYPE,OPTIONS")
SYSFS = "/sys/class/block"
TAKEN = {
    **dict.fromkeys(("/", "/bin", "/lib", "/lib32", "/lib64", "/opt", "/sbin", "/usr"), "programs"),
    **dict.fromkeys(("/home", "/root"), "users' files and their SSH keys"),
    **dict.fromkeys(("/srv", "/var"), "the state of services"),
    **dict.fromkeys(("/dev", "/proc", "/run", "/sys", "/tmp"), "files of the running system"),  # noqa: S108
    "/boot": "the kernel",
    "/etc": "the configuration",
}
"""Folders of the Filesystem Hierarchy Standard → content that a file system mounted there would hide."""


class Unknown(Exception):
    """Failure to find out what is mounted, or what a device consists of; the text is the reason."""


def format_objection(path: str, filesystem: str) -> "tuple[str | None, str | None]":
    """Return the reason not to format a device, and the UUID of gpuprov's file system on it.

    `(None, UUID)` for a device that gpuprov formatted with this file system already, `(None, None)` for one
    that may be formatted: it has no signature, is not in use, and is empty at both ends. If blkid fails, that
    is a reason.

    Raises:
        OSError: the device cannot be read.
    """
    found = signature(path)
    if found and found.get("LABEL") == LABEL and found.get("TYPE") == filesystem:
        return None, found["UUID"]
    if found is not None:
        what = found.get("TYPE") or found.get("PTTYPE") or "something"
        label = f" labelled {found['LABEL']}" if "LABEL" in found else ""
        return f"there is {what}{label} on {path}", None
    try:
        used = uses_of(path)
    except Unknown as unknown:
        return f"it is not known whether {path} is in use: {unknown}", None
    if used:
        return f"{path} is in use by {', '.join(used)}", None
    if not empty(path):
        return f"{path} has no signature and is not empty", None
    return None, None


def signature(path: str) -> "dict[str, str] | None":
    """Return the fields that blkid's low-level probe finds on a device; None if it finds nothing.

    If blkid fails otherwise, the result is empty, which is not None.
    """
    status, said = run("blkid", "-p", "-o", "export", path)
    if status == NOTHING_FOUND and not said:
        return None
    return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)


def uses_of(path: str) -> "list[str]":
    """Return a device's partitions, the devices stacked on it, and its mount points, without those of users,
    who can name any device as the source of a FUSE file system.

    Empty if it is not in use.

    Raises:
        Unknown: the kernel does not list the device, or findmnt fails.
    """
    folder = os.path.join(SYSFS, os.path.basename(path))
    if not os.path.isdir(folder):
        raise Unknown(f"{folder} does not exist")
    inside = sorted(os.listdir(folder))
    partitions = [each for each in inside if os.path.exists(os.path.join(folder, each, "partition"))]
    holders = os.path.join(folder, "holders")
    stacked = sorted(os.listdir(holders)) if os.path.isdir(holders) else []
    mounts()  # findmnt exits with 1 if it fails, and also if the device is not mounted
    status, said = run(*FINDMNT, path)
    if status not in (0, 1):
        raise Unknown(f"{' '.join(FINDMNT)} {path} exited with {status}")
    return [*partitions, *stacked, *_points(said)]


def empty(path: str) -> bool:
    """Return whether the first and last mebibyte are zeros: without its signature a device may have data.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as device:
        size = device.seek(0, os.SEEK_END)
        for place in (0, max(0, size - MEBIBYTE)):
            device.seek(place)
            if device.read(MEBIBYTE).strip(b"\0"):
                return False
    return True


def mount_objection(mount: str) -> "str | None":
    """Return the reason not to mount at a path where nothing is mounted; None if it may be done.

    Reasons are: a folder of `TAKEN`, a link, a folder above it that users can write, a mount below the path,
    a path that is not a folder, and a folder that is not empty, whose content would be hidden. If findmnt
    fails, that is a reason.
    """
    place = os.path.realpath(mount)
    if place in TAKEN:
        return f"{mount} has {TAKEN[place]}"
    if place != os.path.normpath(mount):
        return f"{mount} leads through a link to {place}"
    above = open_folder(place)
    if above is not None:
        return f"users can write to {above}, and replace what is below it"
    try:
        below = [each for each in mounts() if each.startswith(place + "/")]
    except Unknown as unknown:
        return f"it is not known what is mounted below {mount}: {unknown}"
    if below:
        return f"below {mount}, {', '.join(below)} is mounted"
    if os.path.lexists(place) and not os.path.isdir(place):
        return f"{mount} is not a folder"
    there = sorted(os.listdir(place)) if os.path.isdir(place) else []
    if there:
        rest = f" and {len(there) - 3} more" if len(there) > 3 else ""
        return f"{mount} is not empty: {', '.join(there[:3])}{rest}"
    return None


def open_folder(path: str, top: str = "/") -> "str | None":
    """Return the first folder above a path that others than root can write; None without any.

    Args:
        path: without links; it need not exist.
        top: the folder to begin with.
    """
    names = os.path.relpath(os.path.dirname(path), top).split("/")
    folders = [top, *(os.path.join(top, *names[:count]) for count in range(1, len(names) + 1))]
    for folder in folders:
        if os.path.isdir(folder):
            about = os.lstat(folder)
            if about.st_uid != 0 or about.st_mode & 0o022:
                return folder
    return None


def mounts() -> "list[str]":
    """Return all mount points, without those of users' FUSE file systems.

    Raises:
        Unknown: findmnt fails.
    """
    status, said = run(*FINDMNT)
    if status != 0 or not said:
        raise Unknown(
            f"{' '.join(FINDMNT)} exited with {status}" + ("" if said else ", without a mount point")
        )
    return _points(said)


def _points(said: str) -> "list[str]":
    """Return the mount points in the output of `FINDMNT`, without those of users' FUSE file systems."""
    rows = (line.split(" ") for line in said.splitlines())  # --raw escapes blanks
    return [row[0] for row in rows if not (row[1:2] and row[1].startswith("fuse") and not _is_roots(row[-1]))]


def _is_roots(options: str) -> bool:
    """Return whether root has mounted a FUSE file system; the kernel states the user."""
    return "user_id=0" in options.split(",")
