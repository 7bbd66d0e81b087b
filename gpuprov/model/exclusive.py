"""Mutual exclusion of the operator's threads and processes that change the same file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gpuprov.errors import Refused
from gpuprov.files.mutex import Locked, held
from gpuprov.files.runs import state_dir

WAIT_S = 60.0
"""Longest wait in seconds; operations under such a lock take milliseconds."""


@contextmanager
def exclusive(path: Path, seconds: float = WAIT_S) -> Iterator[None]:
    """Hold the lock of a file in the `with` block; wait for it at most `seconds`.

    The lock itself is in the operator's state folder, where no other user can open it, so that the holder may
    replace the file.

    Raises:
        Refused: another process held it all the time.
        OSError: the state folder cannot be written, or is another user's.
    """
    name = hashlib.sha256(str(path.absolute()).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    with ExitStack() as stack:
        try:
            stack.enter_context(held(str(state_dir().resolve() / "locks" / name), seconds))
        except Locked as locked:
            raise refusal(locked, path) from None
        yield


def refusal(locked: Locked, path: Path) -> Refused:
    """Return the error for a file or folder that another process has locked."""
    seen, _, do = str(locked.strerror).partition("; ")
    return Refused(f"{path} is {seen}", do=do)
