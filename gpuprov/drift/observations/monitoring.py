"""Observations of a node's metrics for Prometheus."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import replaced_by, unit_state
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation

observes("monitoring.exporter", "units")(unit_state)
names_who("monitoring.exporter")(replaced_by)
observes("monitoring.dcgm", "units")(unit_state)
names_who("monitoring.dcgm")(replaced_by)


@observes("monitoring.textfile", "files")
def _textfile(facts: Facts, expectation: Expectation) -> Any:
    """Return the SHA-256 of the textfile on the node, None without one."""
    return facts.files[str(expectation.subject)].sha256
