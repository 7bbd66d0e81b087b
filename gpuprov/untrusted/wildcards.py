"""Patterns with wildcards of fnmatch that a node states, compared within a limit of time."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable

from gpuprov.errors import NodeFailed

COMPARED = 1 << 22
"""Maximum product of the number of rows, with a hundred more, and of the characters of all patterns with
wildcards, which count as `SHORTEST` at least: 300 packages and 160 such patterns of 64 characters.
"""
SHORTEST = 16
_LENGTH, _WILDCARDS = 512, 4
"""Maximum length in characters of a pattern and of a text, and maximum number of a pattern's wildcards, as in
`kernel-*-5.14.0-*.el9*.x86_64`; others are ignored. The time of a comparison is the product of both lengths
for each wildcard.
"""


def matcher(patterns: Iterable[str], rows: int) -> Callable[[Iterable[str]], bool]:
    """Return a function that returns whether any of the patterns fits any of a row's texts; longer texts than
    `_LENGTH` fit none.

    Args:
        patterns: patterns of fnmatch, also without wildcards.
        rows: the number of rows that will be compared.

    Raises:
        NodeFailed: rows and patterns would take too long, see `COMPARED`.
    """
    known = [each for each in dict.fromkeys(patterns) if _is_short(each)]
    wild = [each for each in known if _wildcards(each)]
    if (rows + 100) * sum(max(len(each), SHORTEST) for each in wild) > COMPARED:
        raise NodeFailed(
            f"{rows} packages and {len(wild)} version locks with wildcards",
            expected=f"at most {COMPARED} characters of locks, each for each package and for 100 more",
        )
    exact = frozenset(known).difference(wild)
    compiled = [re.compile(fnmatch.translate(each)) for each in wild]

    def fits(texts: Iterable[str]) -> bool:
        texts = tuple(each for each in texts if len(each) <= _LENGTH)
        return not exact.isdisjoint(texts) or any(each.match(text) for each in compiled for text in texts)

    return fits


def _is_short(pattern: str) -> bool:
    return len(pattern) <= _LENGTH and _wildcards(pattern) <= _WILDCARDS


def _wildcards(pattern: str) -> int:
    """Return the number of wildcards in a pattern."""
    return sum(map(pattern.count, "*?["))
