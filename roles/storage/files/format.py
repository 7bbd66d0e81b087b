"""Makes file systems on empty devices, each looked at once more while no one else can take it.

Runs on the node, with plugins/module_utils beside it. Argument:
{"devices": [{"path": "/dev/nvme1n1", "filesystem": "ext4"}], "check": whether nothing must be changed}.
Answers {"changed": true, "made": ["/dev/nvme1n1"], "failure": null}.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from contextlib import contextmanager

from gpuprov_devices import LABEL, objection

MKFS_S = 3600
IN_USE = "{} is in use by another program, or by the kernel"


class Refused(Exception):
    """A device is not what it was; the text says what it is."""


@contextmanager
def locked(path: str):
    """Keep udev from looking at a device, as it probes what was written when a writer closes it.

    https://systemd.io/BLOCK_DEVICE_LOCKING
    """
    lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Refused(IN_USE.format(path)) from None
    finally:
        os.close(lock)


def make(path: str, filesystem: str) -> None:
    """Make a file system on a device that is empty and no one's.

    The kernel lets one opener have a device for itself, and none while it is mounted or part of another one
    (open(2), O_EXCL). mkfs opens it likewise, so it is let go for the moment that mkfs takes to begin.

    Raises:
        Refused: it is not empty, or somebody's.
    """
    with locked(path):
        try:
            alone = os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            raise Refused(IN_USE.format(path)) from None
        try:
            against, uuid = objection(path, filesystem)
        finally:
            os.close(alone)
        if against or uuid:
            raise Refused(against or f"there is a file system of ours on {path}")
        command = [f"mkfs.{filesystem}", "-q", "-L", LABEL, path]
        quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        done = subprocess.run(command, check=False, timeout=MKFS_S, **quiet)
    if done.returncode:
        raise Refused(f"{' '.join(command)} exited with {done.returncode}: {done.stderr.strip()}")


def main() -> None:
    """Print the document."""
    asked = json.loads(sys.argv[1])
    made, failure = [], None
    try:
        for device in asked["devices"]:
            if not asked["check"]:
                make(device["path"], device["filesystem"])
            made.append(device["path"])
    except Refused as refused:
        failure = {
            "says": f"{refused}, which was empty a moment ago",
            "do": "see what made it so, and try again; nothing was written to it",
        }
    sys.stdout.write("\n" + json.dumps({"changed": bool(made), "made": made, "failure": failure}) + "\n")


if __name__ == "__main__":
    main()
