"""Observations of the container toolkit."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import replaced_by, unit_state
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.container_toolkit import FORERUNNERS

observes("container_toolkit.cdi", "units")(unit_state)
names_who("container_toolkit.cdi")(replaced_by)


@observes("container_toolkit.forerunners", "packages")
def _forerunners(facts: Facts, expectation: Expectation) -> Any:
    """Return the installed packages among those that the toolkit replaced."""
    return [name for name in FORERUNNERS if facts.packages.version(name)]
