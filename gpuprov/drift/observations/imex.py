"""Observations of IMEX."""

from __future__ import annotations

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import enabled, replaced_by, unit_state
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.imex import IMEX_UNIT, NODES_FILE, NODES_KEY, socket_of

names_who("imex.unit")(replaced_by)


@observes("imex.unit", "units", "modules")
def _unit(facts: Facts, expectation: Expectation) -> str:
    """Return the unit's state; before the reboot into its driver version it need only be enabled.

    A masked unit that is still active has to be stopped.
    """
    if expectation.expected == "masked":
        unit, state = facts.units.get(IMEX_UNIT), enabled(facts, IMEX_UNIT)
        return f"{state}, but active" if unit and unit.active else state
    state, loaded = unit_state(facts, expectation), facts.loaded_driver
    return state if loaded and loaded.version == expectation.subject else state.partition(", but")[0]


@observes("imex.nodes", "imex")
def _nodes(facts: Facts, expectation: Expectation) -> list[str]:
    """Return the sorted addresses that the daemon reads, or the other file from which it reads them."""
    path = facts.imex.settings.get(NODES_KEY, NODES_FILE)
    return sorted(facts.imex.nodes) if path == NODES_FILE else [f"those in {path}"]


@observes("imex.socket", "imex")
def _socket(facts: Facts, expectation: Expectation) -> str | None:
    """Return the daemon's command socket, None if it is off."""
    return socket_of(facts.imex.settings)
