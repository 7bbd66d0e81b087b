"""One small reading a check: how a node's facts answer an expectation, in the expectation's words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation

Observer = Callable[[Facts, Expectation], Any]
OBSERVERS: dict[str, Observer] = {}
READS: dict[str, tuple[str, ...]] = {}
"""Check → the probe's collectors whose values its reading needs."""
Namer = Callable[[Facts, Expectation], Iterable[str | None]]
NAMERS: dict[str, Namer] = {}
"""Check → who has the last word about what differs: `path:line` of each."""


def observes(check: str, *collectors: str) -> Callable[[Observer], Observer]:
    """Register the reading for one check, and the collectors that it cannot do without."""

    def register(observer: Observer) -> Observer:
        OBSERVERS[check], READS[check] = observer, collectors
        return observer

    return register


def names_who(check: str) -> Callable[[Namer], Namer]:
    """Register who is named where a check differs; it reads what the check's own reading does."""

    def register(namer: Namer) -> Namer:
        NAMERS[check] = namer
        return namer

    return register


def collectors_for(expected: Iterable[Expectation]) -> tuple[str, ...]:
    """The collectors that are needed to judge a node, sorted; `system` tells who asked."""
    needed = {"system"}
    for each in expected:
        needed.update(READS[each.check])
        if each.needs_driver:
            needed.add("smi")
    return tuple(sorted(needed))
