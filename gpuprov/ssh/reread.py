"""Cache for the contents of files, which are read again after a change."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import TypeVar

Read = TypeVar("Read")


def reread_when_written(reader: Callable[[Path], Read]) -> Callable[[Path], Read]:
    """Return a reader that caches its result until the file's size or modification time changes.

    Raises:
        OSError: the file does not exist.
    """

    @lru_cache(maxsize=32)
    def remembered(path: Path, written_ns: int, size: int) -> Read:
        return reader(path)

    @wraps(reader)
    def read(path: Path) -> Read:
        about = path.stat()
        return remembered(path, about.st_mtime_ns, about.st_size)

    return read
