"""Observations of holds and of unattended upgrades."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation


@observes("pins.hold", "packages", "sources")
def _holds(facts: Facts, expectation: Expectation) -> Any:
    held = () if facts.apt.ignores_holds else facts.packages.held
    return [name for name in expectation.expected if name in held]


@observes("pins.unattended", "sources")
def _unattended(facts: Facts, expectation: Expectation) -> Any:
    return [pattern for pattern in expectation.expected if pattern in facts.apt.unattended_blacklist]


@names_who("pins.hold")
@names_who("pins.unattended")
def _clears(facts: Facts, expectation: Expectation) -> Iterable[str | None]:
    return facts.apt.cleared
