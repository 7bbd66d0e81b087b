# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of rpm's packages, as its database has them. Runs on nodes: Python 3.6 or newer.

Configuration files, documentation, licenses and ghosts, which a package only names, are left out; so are
files that rpm itself did not install.
"""

import grp
import os
import pwd
from functools import lru_cache
from typing import NamedTuple

from gpuprov_node import database

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDERS = ("/usr/lib/sysimage/rpm", "/var/lib/rpm")
"""Places of rpm's database: of Fedora and its descendants, of older systems."""
FORM = (
    "[%{=NAME}\t%{=ARCH}\t%{=INSTALLTIME}:%{=EVR}\t%{FILEFLAGS:fflags}\t%{FILESTATES}\t%{FILEMODES}"
    "\t%{LONGFILESIZES}\t%{FILEUSERNAME}\t%{FILEGROUPNAME}\t%{FILEDIGESTS}\t%{FILENAMES}\t%{FILELINKTOS}\n]"
)
LEFT_OUT = frozenset("cdglr")  # rpm's letters: configuration, documentation, ghost, license, readme
NORMAL = "0"
"""State of a file that is installed; others are replaced, left out, or of another architecture."""
PROGRAMS = {32: "md5sum", 64: "sha256sum", 96: "sha384sum", 128: "sha512sum"}
"""Digits of a checksum → the program that prints it."""


class File(NamedTuple):
    """A file of a package: `mode` with its type, `digest` "" without content, `target` of a link."""

    path: str
    mode: int
    size: int
    user: str
    group: str
    digest: str
    target: str


def inode() -> str:
    """Return the inode of rpm's folder: it differs on a copy of the machine."""
    return next((str(os.stat(each).st_ino) for each in FOLDERS if os.path.isdir(each)), "")


def installed(packages: "list[str]") -> "Iterator[tuple[str, str, list[File]]]":
    """Yield name, time of installation with version, and files of those packages that are installed.

    Packages of other architectures than the node's are left out.

    Raises:
        Failed: the database cannot be read. Only with `-qa` rpm's status shows this: otherwise a name that is
            not installed has the same one.
    """
    native, found = (os.uname().machine, "noarch"), {}  # type: tuple[str, str], dict[str, tuple[str, list[File]]]
    if not packages:
        return
    for line in database("rpm", "-qa", "--qf", FORM, "--", *packages).splitlines():
        words = line.split("\t")
        if len(words) != 12 or words[1] not in native:
            continue
        name, _arch, stamp, flags, state, mode, size, user, group, digest, path, target = words
        files = found.setdefault(name, (stamp, []))[1]
        if state == NORMAL and not LEFT_OUT.intersection(flags):
            files.append(File(path, int(mode), int(size), user, group, digest, target))
    for name, (stamp, files) in found.items():
        yield name, stamp, files


def has_owner(file: File, uid: int, gid: int) -> bool:
    """Return whether numbers are those of a file's user and group; True if a name is unknown here."""
    known = _numbers(file.user, file.group)
    return known is None or known == (uid, gid)


@lru_cache(maxsize=None)  # noqa: UP033 - Python 3.6
def _numbers(user: str, group: str) -> "tuple[int, int] | None":
    """Return the numbers of a user and a group; None if one of them is unknown here."""
    try:
        return pwd.getpwnam(user).pw_uid, grp.getgrnam(group).gr_gid
    except KeyError:
        return None
