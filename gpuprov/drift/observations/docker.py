"""Readings of Docker and its configuration."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.documents import within
from gpuprov.drift.observations.registry import observes
from gpuprov.drift.observations.units import unit_state
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation

observes("docker.unit", "units")(unit_state)


@observes("docker.config", "daemon_json")
def _config(facts: Facts, expectation: Expectation) -> Any:
    return within(facts.daemon_json or {}, expectation.expected)
