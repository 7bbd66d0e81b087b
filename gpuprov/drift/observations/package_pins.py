"""Observations of holds and of unattended upgrades."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation


@observes("pins.hold", "packages", "sources")
def _holds(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected packages that are held; none if apt is configured to ignore holds."""
    held = () if facts.apt.ignores_holds else facts.packages.held
    return [name for name in expectation.expected if name in held]


@observes("pins.unattended", "sources")
def _unattended(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected patterns that unattended upgrades exclude."""
    return [pattern for pattern in expectation.expected if pattern in facts.apt.unattended_blacklist]


@names_who("pins.hold")
@names_who("pins.unattended")
def _clears(facts: Facts, expectation: Expectation) -> Iterable[str | None]:
    """Return the places that clear the list of packages to keep, or make apt ignore holds."""
    return facts.apt.cleared
