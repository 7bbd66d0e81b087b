"""The catalog's tables, read on demand: a verb needs a few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Table = tuple[Any, ...]
"""Records of one section of a file, in its order."""


class Tables(Mapping[str, Table]):
    """Tables by file and section, `drivers.branches`; each is read when it is first used, and once."""

    def __init__(self, readers: Mapping[str, Callable[[], Table]]) -> None:
        self._readers = readers
        self._read: dict[str, Table] = {}

    def __getitem__(self, name: str) -> Table:
        """Return a table; raise what its reader raises, InvalidInput for a record that is not valid."""
        if name not in self._read:
            self._read[name] = self._readers[name]()
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)
