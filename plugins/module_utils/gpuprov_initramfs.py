# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The initramfs of a node's kernels, made by initramfs-tools or dracut.

Also: a single new initramfs at the end of a transaction in which package scripts would make several. Debian's
NVIDIA packages have it made three times in one transaction, some 15 s of processor time each: other packages
await their triggers, so that dpkg cannot merge them.

Runs on the node: Python 3.6 to 3.14 and its standard library.
"""

import contextlib
import os
import shutil

from gpuprov_replace import make_folders, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = "/usr/sbin/update-initramfs"
"""The program of initramfs-tools; Ubuntu's dracut has one of this name that runs dracut."""
DRACUT = "/usr/bin/dracut"
BOOT = "/boot"
IMAGES = ("initrd.img-{}", "initramfs-{}.img")
"""Names of an image there: Debian's and Ubuntu's, also from dracut, and those of the RHEL family."""
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # DPkg::Path's default, apt.conf(5)
FOLDER = "/var/lib/gpuprov/scripts-path"
"""Folder of the program in place of update-initramfs, first in the PATH of package scripts."""
OWED = "/var/lib/gpuprov/initramfs-owed"
"""File that exists while an initramfs is requested and not made."""
STAND_IN = """\
#!/bin/sh
# The newest image is made once, when all packages are there; what names a kernel (-c, -k) is done now.
if [ "$*" = -u ]; then : >{owed}; exit 0; fi
exec {program} "$@"
"""


def has_program() -> bool:
    """Return whether `update-initramfs` is installed; a node with dracut may lack it."""
    return os.path.exists(PROGRAM)


def image_of(kernel: str) -> "str | None":
    """Return the path of a kernel's image; None if it has none."""
    paths = (os.path.join(BOOT, name.format(kernel)) for name in IMAGES)
    return next((path for path in paths if os.path.exists(path)), None)


def making(kernel: str, image: str) -> "list[str]":
    """Return the command that makes a kernel's image again.

    initramfs-tools decides the path of its images itself.
    """
    if has_program():
        return [PROGRAM, "-u", "-k", kernel]
    return [DRACUT, "--quiet", "--force", image, kernel]


@contextlib.contextmanager
def postponed() -> "Iterator[str]":
    """Yield an option for apt-get under which `update-initramfs -u` of package scripts is only recorded.

    Other calls, such as with `-c` or `-k`, run as usual. At the end the option has no effect any more.
    """
    make_folders(FOLDER)
    stand_in = os.path.join(FOLDER, os.path.basename(PROGRAM))
    try:
        if has_program():
            replace(stand_in, STAND_IN.format(owed=OWED, program=PROGRAM).encode(), 0o755)
        yield f"--option=DPkg::Path={FOLDER}:{SYSTEM_PATH}"
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


def is_requested() -> bool:
    """Return whether a script requested an initramfs that is not made yet, also in a killed transaction.

    False without update-initramfs.
    """
    return os.path.exists(OWED) and has_program()


def clear_request() -> None:
    """Record that the initramfs was made: remove the request."""
    os.unlink(OWED)
