"""Messages of the kernel, as a driver writes them into its log."""

from __future__ import annotations

import os
import stat
import struct
import time
from pathlib import Path

from .files import Files

KMSG = Path("/dev/kmsg")
NEXT = Path("/run/systemd/journal/kernel-seqnum")
"""Number of the kernel's message that journald reads next."""
ERROR = 3


def say(files: Files, text: str) -> None:
    """Write a message into the kernel's log of a node; nothing in a tree that is not booted."""
    if not files.real or not KMSG.exists():
        return
    handle = os.open(KMSG, os.O_WRONLY | os.O_NONBLOCK)
    try:
        if stat.S_ISFIFO(os.fstat(handle).st_mode):  # a container: the record is as the kernel would write it
            microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            record = f"{ERROR},{_next()},{microseconds},-;{text}\n"
        else:  # a machine of its own: the kernel takes a program's message with another facility than its own
            record = f"<{ERROR + 8}>kernel: {text}"
        os.write(handle, record.encode())
    finally:
        os.close(handle)


def _next() -> int:
    """Return the number of the next message, 0 if unknown; journald leaves out one with a smaller number."""
    try:
        number: int = struct.unpack("<Q", NEXT.read_bytes()[:8])[0]
    except (OSError, struct.error):
        return 0
    return number
