"""Readings of systemd units: whether they start at boot, and have started."""

from __future__ import annotations

from collections.abc import Iterable

from gpuprov.drift.observations.registry import observes
from gpuprov.expectations import (
    CDI_UNIT,
    CLOCKS_UNIT,
    CONTAINERD_UNIT,
    DOCKER_UNIT,
    FABRIC_UNIT,
    FIREWALL_UNIT,
    MODES_UNIT,
    PERSISTENCE_UNIT,
    Expectation,
)
from gpuprov.expectations.observing import DCGM_UNIT, EXPORTER_UNIT
from gpuprov.probe.facts import Facts

UNITS = {
    "gpu.persistence_unit": PERSISTENCE_UNIT,
    "gpu.clocks_unit": CLOCKS_UNIT,
    "gpu.modes_unit": MODES_UNIT,
    "container_toolkit.cdi": CDI_UNIT,
    "docker.unit": DOCKER_UNIT,
    "containerd.unit": CONTAINERD_UNIT,
    "fabric_manager.unit": FABRIC_UNIT,
    "monitoring.exporter": EXPORTER_UNIT,
    "monitoring.dcgm": DCGM_UNIT,
    "firewall.unit": FIREWALL_UNIT,
}
"""Check → the unit that it is about."""


def _unit(facts: Facts, expectation: Expectation) -> str:
    return enabled(facts, UNITS[expectation.check])


for _check in UNITS.keys() - {"fabric_manager.unit"}:
    observes(_check, "units")(_unit)


@observes("fabric_manager.unit", "units", "modules")
def _fabric_unit(facts: Facts, expectation: Expectation) -> str:
    """It refuses to run on another driver than its own, so until the reboot it need only be enabled."""
    state, loaded = _unit(facts, expectation), facts.loaded_driver
    return state if loaded and loaded.version == expectation.subject else state.partition(",")[0]


def units_for(expected: Iterable[Expectation]) -> tuple[str, ...]:
    """The units that expectations are about."""
    return tuple(UNITS[each.check] for each in expected if each.check in UNITS)


def enabled(facts: Facts, unit: str) -> str:
    """`enabled` when it starts at boot and has started now, `enabled, but …` when it has not; otherwise
    `disabled`, another state in systemd's words, or `not installed`.
    """
    known = facts.units.get(unit)
    if known is None or not known.exists:
        return "not installed"
    if not known.enabled:
        return known.file_state or "disabled"
    return "enabled" if known.active or known.starting else f"enabled, but {known.active_state}"
