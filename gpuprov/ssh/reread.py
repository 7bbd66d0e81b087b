"""Files that are read once, and again when they were written."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import TypeVar

Read = TypeVar("Read")


def reread_when_written(reader: Callable[[Path], Read]) -> Callable[[Path], Read]:
    """A reader that remembers what it read of a file until its size or time of writing is another.

    Raises:
        OSError: the file is not there.
    """

    @lru_cache(maxsize=32)
    def remembered(path: Path, written_ns: int, size: int) -> Read:
        return reader(path)

    @wraps(reader)
    def read(path: Path) -> Read:
        about = path.stat()
        return remembered(path, about.st_mtime_ns, about.st_size)

    return read
