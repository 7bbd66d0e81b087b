"""Cache for the contents of files, which are read again after a change."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TypeVar

from gpuprov.errors import InvalidInput
from gpuprov.untrusted.stated import STATED_BYTES

Read = TypeVar("Read")


def reread_when_written(reader: Callable[[Path], Read]) -> Callable[[Path], Read]:
    """Return a reader that keeps its result until the file's size or modification time changes.

    Each host of a fleet can state a file: together they have at most `STATED_BYTES`.

    Raises:
        OSError: the file does not exist.
        InvalidInput: the files are larger.
    """
    kept: dict[Path, tuple[int, int, Read]] = {}

    @wraps(reader)
    def read(path: Path) -> Read:
        about = path.stat()
        found = kept.get(path)
        if found is None or found[:2] != (about.st_mtime_ns, about.st_size):
            kept.pop(path, None)
            size = about.st_size + sum(each[1] for each in list(kept.values()))
            if size > STATED_BYTES:
                seen = f"{path} and {len(kept)} others of its kind have {size} bytes"
                raise InvalidInput(seen, expected=f"at most {STATED_BYTES}")
            found = kept[path] = about.st_mtime_ns, about.st_size, reader(path)
        return found[2]

    return read
