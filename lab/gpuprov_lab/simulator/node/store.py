"""A JSON document that several short-lived programs read and change concurrently."""

from __future__ import annotations

import fcntl
import json
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Store:
    """One document in one file, changed in place under a lock.

    The file stays open, so that a daemon can still write after it drops its privileges. For a user without
    write permission, changes last as long as the program: so `nvidia-smi` can show the result of a change
    that the user may not make.
    """

    def __init__(self, path: Path) -> None:
        self.writable = True
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except PermissionError:
            self.writable = False
            self._file = os.open(path, os.O_RDONLY) if path.exists() else -1
        if self._file >= 0:
            weakref.finalize(self, os.close, self._file)

    def read(self) -> dict[str, Any]:
        """Return the document, under a shared lock; empty if it was never written."""
        with self._locked(fcntl.LOCK_SH):
            return self._load()

    @contextmanager
    def change(self) -> Iterator[dict[str, Any]]:
        """Yield the document; write it back on leaving the block unless the block raises."""
        with self._locked(fcntl.LOCK_EX if self.writable else fcntl.LOCK_SH):
            document = self._load()
            yield document
            if self.writable:
                content = json.dumps(document, indent=1).encode()
                os.pwrite(self._file, content, 0)
                os.ftruncate(self._file, len(content))

    def _load(self) -> dict[str, Any]:
        """Return the document in the open file; empty if it was never written."""
        if self._file < 0:
            return {}
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        document: dict[str, Any] = json.loads(content) if content else {}
        return document

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        """Hold a lock of the file in the block; without a file, do nothing."""
        if self._file < 0:
            yield
            return
        fcntl.flock(self._file, kind)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
