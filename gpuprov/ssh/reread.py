"""Cache for the contents of files, which are read again after a change."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from threading import Lock
from typing import TypeVar

from gpuprov.errors import InvalidInput

Read = TypeVar("Read")
LARGEST = 16 << 20
"""Maximum size in bytes of all files of one kind that the hosts of a fleet state: 160,000 host keys."""
SMALLER = "state fewer or smaller files, with only the keys that the hosts of this fleet need"


def reread_when_written(
    reader: Callable[[Path], Read], size_of: Callable[[Read], int] = lambda _: 0
) -> Callable[[Path], Read]:
    """Return a reader that keeps its result, also an error, until the file changes.

    Each host of a fleet can state a file: together they have at most `LARGEST` bytes. Threads that need a
    file at once read it once.

    Args:
        size_of: returns the number of bytes that a file counts, if that is more than it has.

    Raises:
        OSError: the file does not exist.
        InvalidInput: the files are larger, or as `reader`.
    """
    kept: dict[Path, tuple[tuple[int, ...], int, Read | InvalidInput]] = {}
    lock = Lock()

    def require_small(path: Path, size: int) -> None:
        """Raise InvalidInput if a file of this size and those that are kept are larger than `LARGEST`."""
        size += sum(each[1] for each in kept.values())
        if size > LARGEST:
            seen = f"{path} and {len(kept)} others of its kind have {size} bytes"
            raise InvalidInput(seen, expected=f"at most {LARGEST}", do=SMALLER)

    @wraps(reader)
    def read(path: Path) -> Read:
        with lock:
            about = path.stat()
            state = (about.st_mtime_ns, about.st_ctime_ns, about.st_size)
            if path not in kept or kept[path][0] != state:
                kept.pop(path, None)
                require_small(path, about.st_size)
                found, size = _outcome(reader, path), about.st_size
                if not isinstance(found, InvalidInput):
                    size = max(size, size_of(found))
                    require_small(path, size)
                kept[path] = state, size, found
            result = kept[path][2]
        if isinstance(result, InvalidInput):
            raise result.with_traceback(None)
        return result

    return read


def _outcome(reader: Callable[[Path], Read], path: Path) -> Read | InvalidInput:
    """Return what a reader returns, or its InvalidInput, without what was read until then."""
    try:
        return reader(path)
    except InvalidInput as error:
        return InvalidInput(error.seen, expected=error.expected, do=error.do)
