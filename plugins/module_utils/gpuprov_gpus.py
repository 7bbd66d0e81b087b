# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's devices that processes have open. Runs on nodes: Python 3.6 or newer and its standard library."""

import os
import stat

MAJOR = 195
"""Number of NVIDIA's character devices (devices.txt of Linux); that of nvidia-uvm is chosen at loading."""


def devices_of(pid: str) -> "set[str]":
    """Return the names in /dev of NVIDIA's devices that a process has open: `nvidia0`, `nvidia-uvm`.

    A user chooses names of their own files, in a mount namespace also those in /dev: only a character device
    counts, with NVIDIA's number or the one that the device of this name has here.
    """
    folder, found = "/proc/" + pid + "/fd/", set()  # type: tuple[str, set[str]]
    try:
        numbers = os.listdir(folder)
    except OSError:
        return found
    for number in numbers:
        try:
            target = os.readlink(folder + number)
            named = target.startswith("/dev/nvidia") and "/" not in target[5:]
            if named and _is_of_nvidia(os.stat(folder + number), target):
                found.add(target[5:])
        except OSError:  # ended or closed meanwhile
            continue
    return found


def _is_of_nvidia(opened: os.stat_result, name: str) -> bool:
    """Return whether an open file is the device of that name."""
    if not stat.S_ISCHR(opened.st_mode):
        return False
    try:
        return os.major(opened.st_rdev) == MAJOR or opened.st_rdev == os.stat(name).st_rdev
    except OSError:
        return False
