"""Places of words in a file, for errors that occur after it was parsed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuprov.errors import InFile, InvalidInput
from gpuprov.model.marked import Marked, Path_


class Words(dict[Path_, dict[str, tuple[str, int]]]):
    """A path in a document → each word below it → file and line; all instances are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Words)

    __hash__ = None

    def add(self, document: Marked, below: Path_, key: str, word: str) -> None:
        """Store the place of a word, the value of the key at the path `below`."""
        self.setdefault(below, {})[word] = document.name, document.line((*below, key))

    @contextmanager
    def placing(self, *below: str) -> Iterator[None]:
        """Add file and line to errors that quote one of the words below a path; other errors are unchanged.

        Raises:
            InFile: in place of an InvalidInput that quotes a word.
        """
        try:
            yield
        except InFile:
            raise
        except InvalidInput as error:
            for word, (file, line) in self.get(below, {}).items():
                if repr(word) in error.seen:
                    result = {"expected": error.expected, "do": error.do}
                    raise InFile("unknown-name", file, line, error.seen, **result) from None
            raise
