"""Readings of who may read a GPU's counters."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.probe.facts import Facts, Missing
from gpuprov.roles import Expectation

OPTION = "NVreg_RestrictProfilingToAdminUsers"
PARAMETER = "RmProfilingAdminOnly"
WHO = {"0": "everybody", "1": "root"}
MODULES = ("nvidia", "nvidia_current", "nvidia_current_open")


@observes("profiling.counters", "modprobe", "system")
def _counters(facts: Facts, expectation: Expectation) -> Any:
    """What modprobe will tell the module; nothing means root alone."""
    options = [facts.modprobe.options.get(module, {}).get(OPTION) for module in MODULES]
    return WHO.get(next((value for value in options if value is not None), "1"), "not known")


@observes("profiling.counters_now", "modules")
def _counters_now(facts: Facts, expectation: Expectation) -> Any:
    if facts.loaded_driver is None:
        raise Missing("modules", "no driver is loaded")
    return WHO.get(facts.driver_parameters.get(PARAMETER, "1"), "not known")
