"""One small reading a check: how a node's facts answer an expectation, in the expectation's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuprov.expectations import Expectation
from gpuprov.facts import Facts

Observer = Callable[[Facts, Expectation], Any]
OBSERVERS: dict[str, Observer] = {}


def observes(check: str) -> Callable[[Observer], Observer]:
    """Register the reading for one check."""

    def register(observer: Observer) -> Observer:
        OBSERVERS[check] = observer
        return observer

    return register
