"""Creation of file systems on empty devices; each device is checked again while it is open exclusively.

Runs on the node, with the modules of plugins/module_utils. Argument:
{"devices": [{"path": "/dev/nvme1n1", "filesystem": "ext4"}], "check": whether nothing must be changed}.
Prints {"changed": true, "made": ["/dev/nvme1n1"], "failure": null}.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from contextlib import contextmanager

from gpuprov_devices import LABEL, format_objection

MKFS_S = 3600
IN_USE = "{} is in use by another program, or by the kernel"


class Refused(Exception):
    """Rejection of a device that is no longer empty, to which nothing was written; the text is the reason."""


class Failed(Exception):
    """Failure of mkfs, which may have written to its device; the text is the reason."""


@contextmanager
def locked(path: str):
    """Hold a device's exclusive lock, which keeps udev from probing it, as it does when a writer closes it.

    https://systemd.io/BLOCK_DEVICE_LOCKING

    Raises:
        Refused: another program has the lock.
        OSError: the device cannot be opened for writing.
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
    """Make a file system on a device that is empty and not in use.

    The kernel allows one exclusive opener of a device, and none while it is mounted or part of another device
    (open(2), O_EXCL). mkfs opens it exclusively too, so that it is closed just before mkfs starts.

    Raises:
        Refused: it is not empty or in use.
        Failed: mkfs failed, or took longer than `MKFS_S`.
    """
    with locked(path):
        try:
            alone = os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            raise Refused(IN_USE.format(path)) from None
        try:
            against, uuid = format_objection(path, filesystem)
        finally:
            os.close(alone)
        if against or uuid:
            raise Refused(against or f"there is a file system of gpuprov on {path}")
        command = [f"mkfs.{filesystem}", "-q", "-L", LABEL, path]
        quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "errors": "replace"}
        try:
            done = subprocess.run(command, check=False, timeout=MKFS_S, **quiet)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(command)} did not end within {MKFS_S} s and was killed") from None
    if done.returncode:
        raise Failed(f"{' '.join(command)} exited with {done.returncode}: {done.stderr.strip()}")


def main() -> None:
    """Make the requested file systems, unless in check mode, until one fails; print the made devices and the
    failure as JSON.
    """
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
            "do": "find out which program wrote to it, and try again; gpuprov wrote nothing to it",
        }
    except Failed as failed:
        failure = {
            "says": f"{failed}; the device was empty before, and may have a part of a file system now",
            "do": "see `journalctl -k` for errors of the device, clear it with `wipefs --all` and "
            "`blkdiscard` if nothing on it is needed, and try again",
        }
    sys.stdout.write("\n" + json.dumps({"changed": bool(made), "made": made, "failure": failure}) + "\n")


if __name__ == "__main__":
    main()
