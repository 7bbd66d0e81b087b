"""Observations of Docker and its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprov.drift.observations.documents import within
from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import reads_elsewhere, replaced_by, unit_state
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.docker import CONFIG, DOCKER_UNIT

observes("docker.unit", "units")(unit_state)
names_who("docker.unit")(replaced_by)


@observes("docker.config", "daemon_json", "units")
def _config(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected part of daemon.json; empty if dockerd reads another file."""
    elsewhere = reads_elsewhere(facts, DOCKER_UNIT, CONFIG)
    return within({} if elsewhere else facts.daemon_json or {}, expectation.expected)


@names_who("docker.config")
def _places(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the place that makes dockerd read another file, or None."""
    yield reads_elsewhere(facts, DOCKER_UNIT, CONFIG)
