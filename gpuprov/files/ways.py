"""Ways of a path: the path as stated, and as each link on it leads on."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

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
