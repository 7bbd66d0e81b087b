"""What the role storage reads of a node: one JSON document. Changes nothing.

Standard library only; runs on the node from stdin. Argument: {"scratch": [{"device": …, "mount": …,
"filesystem": …, "read_ahead_kib": …}, …]}.

    {"scratch": [{"mount": "/scratch", "path": "/dev/nvme1n1", "objection": null, "uuid": null,
                  "mounted": false, "read_ahead_off": true}],
     "ours": ["/old"]}

`objection` says why the device must not be touched. `uuid` is that of a file system of ours, null on an empty
device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

LABEL = "gpuprov"  # of the file systems that the role made
MARK = "x-gpuprov"  # option of its lines in fstab; x- options are for people (mount(8))
MEBIBYTE = 1024 * 1024
NOTHING_FOUND = 2  # blkid(8), "EXIT STATUS"


def output(*argv: str) -> str:
    """What a program prints, also when it fails."""
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout.strip()


def signature(path: str) -> dict[str, str] | None:
    """What blkid's low-level probe finds on a device; None for nothing."""
    done = subprocess.run(["blkid", "-p", "-o", "export", path], capture_output=True, text=True, check=False)
    if done.returncode == NOTHING_FOUND and not done.stdout:
        return None
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def empty(path: str) -> bool:
    """Whether the first and the last mebibyte are zeros: what was wiped of its signature still has bytes."""
    with Path(path).open("rb") as device:
        size = device.seek(0, os.SEEK_END)
        for place in (0, max(0, size - MEBIBYTE)):
            device.seek(place)
            if device.read(MEBIBYTE).strip(b"\0"):
                return False
    return True


def users(path: str) -> list[str]:
    """Partitions and whatever is stacked on a device, and where it is mounted."""
    name = Path(path).name
    folder = Path("/sys/class/block", name)
    partitions = [child.name for child in folder.glob(f"{name}*") if (child / "partition").exists()]
    holders = [holder.name for holder in (folder / "holders").glob("*")]
    return [
        *partitions,
        *holders,
        *output("findmnt", "--noheadings", "--output", "TARGET", path).splitlines(),
    ]


def objection(path: str, wanted: dict) -> tuple[str | None, str | None]:
    """Why a device must not be touched, and the UUID of what we made on it."""
    found = signature(path)
    if found and found.get("LABEL") == LABEL and found.get("TYPE") == wanted["filesystem"]:
        return None, found["UUID"]
    if found is not None:
        what = found.get("TYPE") or found.get("PTTYPE") or "something"
        label = f" labelled {found['LABEL']}" if "LABEL" in found else ""
        return f"there is {what}{label} on {path}", None
    if users(path):
        return f"{path} is in use by {', '.join(users(path))}", None
    if not empty(path):
        return f"{path} has no signature and is not empty", None
    return None, None


def mounted(mount: str) -> str:
    """UUID of what is mounted at a place; empty for nothing."""
    return output("findmnt", "--noheadings", "--output", "UUID", "--mountpoint", mount)


def judge(wanted: dict) -> dict:
    """One file system: where it is, and what is to be done for it."""
    found = {path.resolve() for path in Path("/").glob(wanted["device"].lstrip("/"))}
    paths = sorted(str(path) for path in found if path.is_block_device())
    row = {"mount": wanted["mount"], "path": None, "objection": None, "uuid": None, "mounted": False}
    if len(paths) != 1:
        seen = ", ".join(paths) or "no device"
        return {**row, "read_ahead_off": False, "objection": f"{wanted['device']} is {seen}, not one device"}
    row["path"] = paths[0]
    row["objection"], row["uuid"] = objection(paths[0], wanted)
    there = mounted(wanted["mount"])
    row["mounted"] = bool(there) and there == row["uuid"]
    if there and there != row["uuid"]:
        row["objection"] = f"another file system is mounted at {wanted['mount']}"
    ahead = int(output("blockdev", "--getra", paths[0]) or 0) // 2  # sectors of 512 bytes
    return {**row, "read_ahead_off": wanted.get("read_ahead_kib") not in (None, ahead)}


def ours() -> list[str]:
    """Mount points of our lines in fstab."""
    fstab = Path("/etc/fstab")
    lines = fstab.read_text().splitlines() if fstab.exists() else []
    rows = [line.split() for line in lines if not line.startswith("#")]
    return [row[1] for row in rows if len(row) > 3 and MARK in row[3].split(",")]


def main() -> None:
    """Print the document."""
    asked = json.loads(sys.argv[1])["scratch"]
    json.dump({"scratch": [judge(wanted) for wanted in asked], "ours": ours()}, sys.stdout)


if __name__ == "__main__":
    main()
