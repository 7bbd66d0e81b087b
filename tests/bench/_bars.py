"""Limits that benches state for their figures, and the exit code if a figure misses its limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Bar:
    """A figure of a bench with its limit, which the figure may equal.

    Attributes:
        most, least: the limit; a bar has one of them.
    """

    name: str
    figure: float
    most: float = inf
    least: float = -inf

    @property
    def limit(self) -> str:
        """The limit as text: `at most 2`."""
        return f"at most {self.most:g}" if self.most < inf else f"at least {self.least:g}"

    @property
    def kept(self) -> bool:
        """Whether the figure is within its limit; a figure that is no number is not."""
        return self.least <= self.figure <= self.most


def verdict(bars: Iterable[Bar]) -> int:
    """Print the figures that miss their limits; return the exit code of the bench."""
    missed = [bar for bar in bars if not bar.kept]
    for bar in missed:
        print(f"missed: {bar.name} {bar.figure:.3f}, {bar.limit}")
    return int(bool(missed))
