"""What the role storage reads of a node: one JSON document. Changes nothing.

Runs on the node, with plugins/module_utils beside it. Argument:
{"scratch": [{"device": …, "mount": …, "filesystem": …, "read_ahead_kib": …}, …]}.

    {"scratch": [{"device": "/dev/nvme1n*", "mount": "/scratch", "filesystem": "ext4", "read_ahead_kib": null,
                  "path": "/dev/nvme1n1", "objection": null, "hidden": null, "uuid": null, "mounted": false,
                  "read_ahead_off": true}],
     "gone": ["/old"]}

Each row has what is asked for beside what was found: `objection` says why the device must not be touched,
`hidden` what a file system mounted at the place would hide. `uuid` is that of a file system of ours, null on
an empty device. `gone` are mounts of ours that are asked for no more. A mount comes after those above it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpuprov_devices import hidden, objection
from gpuprov_node import output

MARK = "x-gpuprov"  # option of our lines in fstab; x- options are for people (mount(8))
DEFAULTS = {"filesystem": "ext4", "read_ahead_kib": None}


def mounted(mount: str) -> str:
    """UUID of what is mounted at a place; empty for nothing."""
    return output("findmnt", "--noheadings", "--output", "UUID", "--mountpoint", mount).strip()


def judge(asked: dict) -> dict:
    """One file system: what is asked for, where it is, and what is to be done for it."""
    wanted = {**DEFAULTS, **asked}
    found = {path.resolve() for path in Path("/").glob(wanted["device"].lstrip("/"))}
    paths = sorted(str(path) for path in found if path.is_block_device())
    row = {**wanted, "path": None, "objection": None, "hidden": None, "uuid": None, "mounted": False}
    if len(paths) != 1:
        seen = ", ".join(paths) or "no device"
        return {**row, "read_ahead_off": False, "objection": f"{wanted['device']} is {seen}, not one device"}
    row["path"] = paths[0]
    row["objection"], row["uuid"] = objection(paths[0], wanted["filesystem"])
    there = mounted(wanted["mount"])
    row["mounted"] = bool(there) and there == row["uuid"]
    if there and there != row["uuid"]:
        row["objection"] = f"another file system is mounted at {wanted['mount']}"
    elif not there:
        row["hidden"] = hidden(wanted["mount"])
    ahead = int(output("blockdev", "--getra", paths[0]) or 0) // 2  # sectors of 512 bytes
    return {**row, "read_ahead_off": wanted["read_ahead_kib"] not in (None, ahead)}


def ours() -> list[str]:
    """Mount points of our lines in fstab."""
    fstab = Path("/etc/fstab")
    lines = fstab.read_text().splitlines() if fstab.exists() else []
    rows = [line.split() for line in lines if not line.startswith("#")]
    return [row[1] for row in rows if len(row) > 3 and MARK in row[3].split(",")]


def main() -> None:
    """Print the document."""
    asked = sorted(json.loads(sys.argv[1])["scratch"], key=lambda wanted: wanted["mount"])
    scratch = [judge(wanted) for wanted in asked]
    gone = [mount for mount in ours() if mount not in {row["mount"] for row in scratch}]
    json.dump({"scratch": scratch, "gone": gone}, sys.stdout)


if __name__ == "__main__":
    main()
