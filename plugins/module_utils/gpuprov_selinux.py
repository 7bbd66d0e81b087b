# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels of SELinux for new files and folders.

The kernel gives a new file the type of its folder, or one that depends on the name with which it is created.
The policy may have another type for its path: with Debian's policy sshd may not read a ~/.ssh that has the
type of the home folder.

Runs on nodes and on the controller: Python 3.6 to 3.14 and its standard library, Linux and macOS.
"""

import contextlib
import os
import subprocess

ENFORCE = "/sys/fs/selinux/enforce"
"""File that exists while SELinux is on, enforcing or permissive."""
MATCHPATHCON = ("/usr/sbin/matchpathcon", "/sbin/matchpathcon")
"""Program that prints the policy's label for a path; a package of the policy's own tools requires it."""
ATTRIBUTE = "security.selinux"
UNKNOWN = b":default_t"
"""Type of paths that the policy does not know; there the folder's type, which the site chose, is kept."""


def label_new(handle: int, path: str, kind: str = "file") -> None:
    """Give a new open file or folder the label that the policy has for its path.

    Nothing is done without SELinux, by another user than root, or without a label for the path. A file system
    may have no labels of its own, such as NFS: errors are ignored.

    Args:
        path: where the file is, or to where it will be renamed.
        kind: `file` or `dir`.
    """
    label = _label_of(path, kind)
    if label:
        with contextlib.suppress(OSError):
            os.setxattr(handle, ATTRIBUTE, label + b"\0")


def _label_of(path: str, kind: str) -> bytes:
    """Return the policy's label for a path; empty if there is none."""
    program = next(filter(os.path.exists, MATCHPATHCON), None)
    if os.geteuid() or not program or not os.path.exists(ENFORCE):
        return b""
    asked = [program, "-n", "-m", kind, path]
    done = subprocess.run(  # noqa: UP022 - Python 3.6
        asked, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    label = done.stdout.strip()
    is_label = done.returncode == 0 and label.count(b":") >= 2
    return label if is_label and UNKNOWN not in label else b""
