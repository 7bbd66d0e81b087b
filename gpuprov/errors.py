"""The one tree of errors, and the exit codes of every verb.

A message says what was seen, what was expected, and what to type next; the command line prints it
as it stands, without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line. When several hold, `worst` decides."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DRIFT = 3
    UNREACHABLE = 4
    REFUSED = 5
    INTERRUPTED = 130


def worst(*codes: int) -> Exit:
    """The code that speaks for several: failed beats refused beats unreachable beats drift beats fine."""
    for code in (Exit.INTERRUPTED, Exit.USAGE, Exit.FAILED, Exit.REFUSED, Exit.UNREACHABLE, Exit.DRIFT):
        if code in codes:
            return code
    return Exit.OK


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The known word that is nearest to a mistyped one: `did you mean 'driver'?`, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


class GpuprovError(Exception):
    """Something a person can act on.

    Args:
        seen: what was found, with its place (`fleet.yml:7: unknown key 'profle'`).
        expected: what would have been right, if that is not plain from `seen`.
        do: the next thing to type or change.
    """

    exit_code = Exit.FAILED

    def __init__(self, seen: str, *, expected: str = "", do: str = "") -> None:
        self.seen, self.expected, self.do = seen, expected, do
        super().__init__(seen)

    def __str__(self) -> str:
        parts = [self.seen]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.do:
            parts.append(self.do)
        return "; ".join(parts)


class NodeFailed(GpuprovError):
    """A node answered, and what was asked of it did not work."""


class InvalidInput(GpuprovError):
    """A file, an option or a name that is not valid."""

    exit_code = Exit.USAGE


class InFile(InvalidInput):
    """Something in a file that is not valid.

    Args:
        kind: what sort of mistake it is, for programs: `unknown-key`, `missing-key`, `wrong-value`, …
        file: the file as it was named.
        line: from 1.
        seen, expected, do: as in `GpuprovError`; the place goes before `seen`.
    """

    def __init__(
        self, kind: str, file: str, line: int, seen: str, *, expected: str = "", do: str = ""
    ) -> None:
        self.kind, self.file, self.line = kind, file, line
        super().__init__(f"{file}:{line}: {seen}", expected=expected, do=do)


class Unreachable(GpuprovError):
    """A node did not let us in: no route, wrong key, changed host key, time-out."""

    exit_code = Exit.UNREACHABLE


class Refused(GpuprovError):
    """No such stack can work, or a gate is shut."""

    exit_code = Exit.REFUSED
