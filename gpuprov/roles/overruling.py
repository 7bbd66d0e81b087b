"""Who could have the last word about a setting or a component, and what apply does about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Answer = Literal["mends", "fails"]


@dataclass(frozen=True, slots=True)
class Overruling:
    """One way in which somebody else's word goes before gpuprov's.

    `of` is a key of `settings` or the name of a component, `check` the expectation that sees it, `by` who has
    the last word. Apply mends it (the word is one that the role sets anew), or fails for that node and names
    the place: a file of somebody else's is neither changed nor removed.
    """

    of: str
    check: str
    by: str
    apply: Answer


def fails(of: str, check: str, *by: str) -> tuple[Overruling, ...]:
    """Ways that apply leaves alone, failing with the place."""
    return tuple(Overruling(of, check, each, "fails") for each in by)


def mends(of: str, check: str, *by: str) -> tuple[Overruling, ...]:
    """Ways that apply takes back."""
    return tuple(Overruling(of, check, each, "mends") for each in by)
