# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that have a device of a GPU open. Runs on nodes: Python 3.6 or newer.

The path of an open file, the text of a link in /proc, is that of the process's own namespace: there a user
can give any file the name of a device. The number of a device is the kernel's.
"""

import os

FOLDER = "/dev"
OPENED = 0o600
"""Mode of a link in /proc/PID/fd to a file that is open for reading or writing, proc(5).

With O_PATH it has neither, and needs no right to use the device.
"""


def devices_of(pid: str) -> "set[str]":
    """Return the names in /dev of NVIDIA's devices that a process has open: `nvidia0`, `nvidia-uvm`."""
    folder, found = "/proc/" + pid + "/fd/", set()
    try:
        numbers = os.listdir(folder)
    except OSError:  # it has ended, or is another user's
        return set()
    for number in numbers:
        try:
            # Only these: the state of a file in the network may never be answered.
            if os.readlink(folder + number).startswith("/dev/nvidia"):
                found.add(os.lstat(folder + number).st_mode & OPENED and os.stat(folder + number).st_rdev)
        except OSError:  # closed meanwhile
            continue
    names = [name for name in os.listdir(FOLDER) if name.startswith("nvidia")] if found - {0} else []
    return {name for name in names if _number(FOLDER + "/" + name) in found - {0}}


def _number(path: str) -> int:
    """Return the number of a device; 0 for another file, and if it was removed meanwhile."""
    try:
        return os.stat(path).st_rdev
    except OSError:
        return 0
