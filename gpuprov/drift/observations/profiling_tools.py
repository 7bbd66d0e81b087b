"""Observations of the users who may read a GPU's counters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.probe.facts import Facts, Missing
from gpuprov.roles import Expectation

OPTION = "NVreg_RestrictProfilingToAdminUsers"
PARAMETER = "RmProfilingAdminOnly"
WHO = {"0": "everybody", "1": "root"}
MODULES = ("nvidia", "nvidia_current", "nvidia_current_open")


@observes("profiling.counters", "modprobe", "system")
def _counters(facts: Facts, expectation: Expectation) -> Any:
    """Return the users that modprobe's options allow, `everybody` or `root`; without the option only root."""
    values = {facts.modprobe.options.get(module, {}).get(OPTION) for module in MODULES} - {None}
    return " and ".join(sorted(WHO.get(value or "", "not known") for value in values or {"1"}))


@names_who("profiling.counters")
def _places(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the places of options that allow other users than expected."""
    for module in MODULES:
        value = facts.modprobe.options.get(module, {}).get(OPTION)
        if value is not None and WHO.get(value) != expectation.expected:
            yield facts.modprobe.places[module, OPTION]


@observes("profiling.counters_now", "modules")
def _counters_now(facts: Facts, expectation: Expectation) -> Any:
    """Return the users that the loaded driver allows, `not known` for another value; raise Missing if no
    driver is loaded.
    """
    if facts.loaded_driver is None:
        raise Missing("modules", "no driver is loaded")
    return WHO.get(facts.driver_parameters.get(PARAMETER, "1"), "not known")
