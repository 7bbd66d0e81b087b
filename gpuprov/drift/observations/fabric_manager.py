"""Observations of the fabric manager."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.gpus import gpus_of
from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import replaced_by, unit_state
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation


@observes("fabric_manager.fabric", "smi")
def _fabric(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected state if all GPUs have it, else all states as text, `no GPU` without GPUs; raises
    as `gpus_of`.
    """
    states = {gpu.fabric_state or "not stated" for gpu in gpus_of(facts)}
    return expectation.expected if states == {expectation.expected} else ", ".join(sorted(states)) or "no GPU"


@observes("fabric_manager.unit", "units", "modules")
def _fabric_unit(facts: Facts, expectation: Expectation) -> str:
    """Return the unit's state; before the reboot into its driver version it need only be enabled."""
    state, loaded = unit_state(facts, expectation), facts.loaded_driver
    return state if loaded and loaded.version == expectation.subject else state.partition(", but")[0]


names_who("fabric_manager.unit")(replaced_by)
