"""State of a node for the role storage, as one JSON document. Changes nothing.

Runs on the node, with the modules of plugins/module_utils. Argument:
{"scratch": [{"device": …, "mount": …, "filesystem": …, "read_ahead_kib": …}, …]}.

    {"scratch": [{"device": "/dev/nvme1n*", "mount": "/scratch", "filesystem": "ext4", "read_ahead_kib": null,
                  "path": "/dev/nvme1n1", "objection": null, "hidden": null, "uuid": null, "mounted": false,
                  "read_ahead_off": true}],
     "gone": ["/old"], "unmount": ["/old"], "fstab": true}

Each row has the requested values and the state: `objection` is the reason not to format the device, `hidden`
what a file system mounted at the place would hide. `uuid` is that of gpuprov's file system, null on an empty
device. `gone` are the role's mounts that are no longer requested, `unmount` those of them that are mounted. A
mount comes after those above it.
`fstab`: whether /etc/fstab exists.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpuprov_devices import format_objection, mount_objection
from gpuprov_node import output

FSTAB = Path("/etc/fstab")
# Options in the role's lines of fstab, without effect (mount(8)). mount stores x- options, which former
# releases wrote, in a file that any user can lock.
MARKS = {"X-gpuprov", "x-gpuprov"}
DEFAULTS = {"filesystem": "ext4", "read_ahead_kib": None}


def mounted(mount: str) -> str:
    """Return the UUID of the file system mounted at a path; an empty string if nothing is mounted."""
    return output("findmnt", "--noheadings", "--output", "UUID", "--mountpoint", mount).strip()


def judge(asked: dict, every: list[str]) -> dict:
    """Return the row of one file system: the requested values and its state, with `objection` or `hidden`, a
    reason against formatting or mounting it.

    Args:
        every: the requested mount points; all users can write to each of them.
    """
    wanted = {**DEFAULTS, **asked}
    found = {path.resolve() for path in Path("/").glob(wanted["device"].lstrip("/"))}
    paths = sorted(str(path) for path in found if path.is_block_device())
    row = {**wanted, "path": None, "objection": None, "hidden": None, "uuid": None, "mounted": False}
    if len(paths) != 1:
        seen = ", ".join(paths) or "no device"
        reason = f"{wanted['device']} matches {seen}, not one device"
        return {**row, "read_ahead_off": False, "objection": reason}
    row["path"] = paths[0]
    row["objection"], row["uuid"] = format_objection(paths[0], wanted["filesystem"])
    there = mounted(wanted["mount"])
    row["mounted"] = bool(there) and there == row["uuid"]
    if there and there != row["uuid"]:
        row["objection"] = f"another file system is mounted at {wanted['mount']}"
    elif not there:
        row["hidden"] = nested(wanted["mount"], every) or mount_objection(wanted["mount"])
    ahead = int(output("blockdev", "--getra", paths[0]) or 0) // 2  # sectors of 512 bytes
    return {**row, "read_ahead_off": wanted["read_ahead_kib"] not in (None, ahead)}


def nested(mount: str, every: list[str]) -> str | None:
    """Return the reason not to mount below another requested mount point, where users can replace folders;
    None if the point is not below one of `every`.
    """
    above = next((each for each in every if mount.startswith(each.rstrip("/") + "/")), None)
    return f"{mount} is below {above}, to which all users can write" if above else None


def ours(fstab: Path = FSTAB) -> dict[str, str]:
    """Return mount point → UUID of the role's lines of fstab; none without the file."""
    lines = fstab.read_text(errors="replace").splitlines() if fstab.exists() else []
    rows = [line.split() for line in lines if not line.startswith("#")]
    marked = [row for row in rows if len(row) > 3 and MARKS & set(row[3].split(","))]
    return {mount: device.partition("=")[2] for device, mount, *_ in marked}


def main() -> None:
    """Print the state, as described above."""
    asked = sorted(json.loads(sys.argv[1])["scratch"], key=lambda wanted: wanted["mount"])
    every = [wanted["mount"] for wanted in asked]
    scratch = [judge(wanted, every) for wanted in asked]
    gone = {mount: uuid for mount, uuid in ours().items() if mount not in {row["mount"] for row in scratch}}
    unmount = [mount for mount, uuid in gone.items() if uuid and mounted(mount) == uuid]
    found = {"scratch": scratch, "gone": list(gone), "unmount": unmount, "fstab": FSTAB.exists()}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
