"""Readings of holds and of unattended upgrades."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation


@observes("pins.hold", "packages")
def _holds(facts: Facts, expectation: Expectation) -> Any:
    held = facts.packages.held
    return [name for name in expectation.expected if name in held]


@observes("pins.unattended", "sources")
def _unattended(facts: Facts, expectation: Expectation) -> Any:
    return [pattern for pattern in expectation.expected if pattern in facts.apt.unattended_blacklist]
