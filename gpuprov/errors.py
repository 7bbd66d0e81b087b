"""Exceptions of gpuprov, and the exit codes of all verbs.

A message states what was found, what was expected, and the next command; the command line prints it
unchanged, without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar

TEXT = 4000
"""Maximum length of each part of a failure whose text a node can choose, in characters."""


class Exit(IntEnum):
    """Exit codes of the command line; `worst` selects one if several apply."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DRIFT = 3
    UNREACHABLE = 4
    REFUSED = 5
    INTERRUPTED = 130


def worst(*codes: int) -> Exit:
    """Return the highest of the codes: interrupted, usage, failed, refused, unreachable, drift, ok."""
    for code in (Exit.INTERRUPTED, Exit.USAGE, Exit.FAILED, Exit.REFUSED, Exit.UNREACHABLE, Exit.DRIFT):
        if code in codes:
            return code
    return Exit.OK


LONGEST_WORD = 200
"""Number of characters of a word that are compared with others: each takes memory."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the known word nearest to a mistyped one: `did you mean 'driver'?`; empty without a match."""
    near = difflib.get_close_matches(word[:LONGEST_WORD], list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


class GpuprovError(Exception):
    """Error that the operator can resolve.

    Args:
        seen: the problem, with its place (`fleet.yml:7: unknown key 'profle'`).
        expected: the valid value, if `seen` does not imply it.
        do: the next command or change.
    """

    exit_code = Exit.FAILED
    longest: ClassVar[int | None] = None
    """Maximum length of each part in characters, None for any; the rest is cut off."""

    def __init__(self, seen: str, *, expected: str = "", do: str = "") -> None:
        self.seen, self.expected, self.do = (part[: self.longest] for part in (seen, expected, do))
        super().__init__(self.seen)

    def __str__(self) -> str:
        """Return the parts that are not empty, as `SEEN; expected EXPECTED; DO`."""
        parts = [self.seen]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.do:
            parts.append(self.do)
        return "; ".join(parts)


class NodeFailed(GpuprovError):
    """Failure of an operation on a node that answered."""

    longest = TEXT


class InvalidInput(GpuprovError):
    """Invalid file, option or name."""

    exit_code = Exit.USAGE


class InFile(InvalidInput):
    """Invalid part of a file.

    Args:
        kind: kind of the mistake, for programs: `unknown-key`, `missing-key`, `wrong-value`, …
        file: the file's name as the user gave it.
        line: line number, from 1.
        seen, expected, do: as in `GpuprovError`; the message has the place before `seen`.
    """

    def __init__(
        self, kind: str, file: str, line: int, seen: str, *, expected: str = "", do: str = ""
    ) -> None:
        self.kind, self.file, self.line = kind, file, line
        super().__init__(f"{file}:{line}: {seen}", expected=expected, do=do)


class Unreachable(GpuprovError):
    """Failed connection to a node: no route, wrong key, changed host key, time-out."""

    exit_code = Exit.UNREACHABLE
    longest = TEXT


class Silent(Unreachable):
    """No answer from a node itself within the time limit, or no route to it: it hangs or is switched off.

    An answer that is not the expected one, such as a refused key, is no silence.
    """


class Refused(GpuprovError):
    """Refusal: the stack cannot work, or a gate does not allow the operation."""

    exit_code = Exit.REFUSED
