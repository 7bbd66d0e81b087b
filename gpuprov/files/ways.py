"""Ways of a path: the path as stated, and as each link on it leads on."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gpuprov.files.mutex import NotOurs

LINKS = 40
"""Most links that Linux follows in a path, path_resolution(7)."""


def ways(path: Path) -> Iterator[Path]:
    """Yield an absolute path up to its first link, then with the link's target in its place, and so on; last
    the path without links.

    `..` is removed where no link is before it. Parts that do not exist are no links.

    Raises:
        OSError: there are more than `LINKS` links.
    """
    for _ in range(LINKS + 1):
        link = next((each for each in (*reversed(path.parents), path) if each.is_symlink()), None)
        if link is None:
            yield Path(os.path.normpath(path))
            return
        rest, place = path.relative_to(link), Path(os.path.normpath(link))
        yield place
        path = place.parent / place.readlink() / rest
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def above(path: Path) -> Iterator[Path]:
    """Yield all links and folders by which a path can be replaced, with itself; raises as `ways`."""
    for way in ways(path):
        yield from (way, *way.parents)


def require_own_above(path: Path) -> None:
    """Check that no other user may change a file or folder, or rename one above it and put a link to another
    in its place, or owns a link on the way to it.

    root may, and the owner of the home directory, whose SSH configuration is used anyway: a container's root
    often has another user's. Members of a folder's group are not checked.

    Raises:
        NotOurs: another user may.
        OSError: a folder cannot be read.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path's raises without a home
    trusted = {0, os.geteuid(), home.stat().st_uid if home.is_dir() else 0}
    for each in above(path):
        about = each.lstat()
        mode = 0 if stat.S_ISLNK(about.st_mode) else about.st_mode  # all links have the mode 777
        if about.st_uid not in trusted:
            raise NotOurs(errno.EPERM, f"{each} belongs to user {about.st_uid}", str(path))
        if mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            said = f"other users may write {each}, its mode is {stat.S_IMODE(mode):o}"
            raise NotOurs(errno.EPERM, said, str(path))
