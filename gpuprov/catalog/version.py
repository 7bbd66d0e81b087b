"""Versions that compare as tuples of integers, never as text: 580.65.06 is (580, 65, 6)."""

from __future__ import annotations

import re
from functools import lru_cache

_DIGITS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,15}")


class Version:
    """An upstream version: its text as published, and the integers for comparison."""

    __slots__ = ("major", "minor", "parts", "text")

    def __init__(self, text: str) -> None:
        """Parse a version.

        Raises:
            ValueError: anything but integers with dots between them.
        """
        if not _DIGITS.fullmatch(text):
            raise ValueError(f"{text!r} is not a version: integers with dots between them")
        self.text = text
        self.parts = tuple(map(int, text.split(".")))
        self.major = self.parts[0]
        """The first number: a driver's branch, a toolkit's major."""
        self.minor = self if len(self.parts) <= 2 else version(".".join(text.split(".")[:2]))
        """The first two numbers: `12.4` of `12.4.1`."""

    def within(self, prefix: Version) -> bool:
        """Return whether `prefix` is this version or its beginning: 12.4.1 is within 12.4 and 12."""
        return self.parts[: len(prefix.parts)] == prefix.parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.parts == other.parts

    # all four written out: comparisons are the resolver's inner loop, and total_ordering costs one call each
    def __lt__(self, other: Version) -> bool:
        return self.parts < other.parts

    def __le__(self, other: Version) -> bool:
        return self.parts <= other.parts

    def __gt__(self, other: Version) -> bool:
        return self.parts > other.parts

    def __ge__(self, other: Version) -> bool:
        return self.parts >= other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Version({self.text!r})"


@lru_cache(maxsize=4096)
def version(text: str) -> Version:
    """Return the version that `text` states.

    Raises:
        ValueError: anything but integers with dots between them.
    """
    return Version(text)
