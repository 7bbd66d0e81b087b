"""Registry of observations: for each check a function from facts to the expectation's values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation

Observer = Callable[[Facts, Expectation], Any]
OBSERVERS: dict[str, Observer] = {}
READS: dict[str, tuple[str, ...]] = {}
"""Check → the probe's collectors that its observation needs."""
Namer = Callable[[Facts, Expectation], Iterable[str | None]]
NAMERS: dict[str, Namer] = {}
"""Check → the places, `path:line`, that set the differing values."""


def observes(check: str, *collectors: str) -> Callable[[Observer], Observer]:
    """Register the observation of one check, and the collectors that it requires.

    The function returns the actual value. If a value other than the expected one is allowed, it returns the
    expected one.
    """

    def register(observer: Observer) -> Observer:
        OBSERVERS[check], READS[check] = observer, collectors
        return observer

    return register


def names_who(check: str) -> Callable[[Namer], Namer]:
    """Register the function that names the places of a differing check; it uses the same facts.

    `expected` of the expectation that it gets has only the items that differ; it may yield None.
    """

    def register(namer: Namer) -> Namer:
        NAMERS[check] = namer
        return namer

    return register


def collectors_for(expected: Iterable[Expectation]) -> tuple[str, ...]:
    """Return the collectors needed to judge a node, sorted; `system` shows the probe's user."""
    needed = {"system"}
    for each in expected:
        needed.update(READS[each.check])
        if each.needs_driver:
            needed.add("smi")
    return tuple(sorted(needed))
