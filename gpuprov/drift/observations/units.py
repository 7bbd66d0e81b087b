"""Observations of systemd units: enabled at boot, and active."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpuprov.probe.facts import Facts
from gpuprov.roles import UNITS, Expectation


def unit_state(facts: Facts, expectation: Expectation) -> str:
    """Return the state of a check's unit, as `enabled` does."""
    return enabled(facts, UNITS[expectation.check])


def commanded_by(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the place that sets a unit's command if it is neither gpuprov's nor the package's, else None."""
    place = _command_place(facts, expectation)
    yield place if _foreign(place) else None


def own_unit_state(facts: Facts, expectation: Expectation) -> str:
    """Return a unit's state, with a note if neither gpuprov's file nor the package's sets its command."""
    state, foreign = unit_state(facts, expectation), _foreign(_command_place(facts, expectation))
    return f"{state}, with another command" if state == "enabled" and foreign else state


def _command_place(facts: Facts, expectation: Expectation) -> str | None:
    """Return the place that sets the command of a check's unit, or None."""
    unit = facts.units.get(UNITS[expectation.check])
    return unit.commanded_by if unit else None


def _foreign(place: str | None) -> bool:
    """Return whether a place is in /etc or /run."""
    return (place or "").startswith(("/etc/", "/run/"))


def reads_elsewhere(facts: Facts, unit: str, path: str) -> str | None:
    """Return the place that makes a daemon read another configuration file than `path`, or None.

    Args:
        unit: the daemon's unit.
    """
    known = facts.units.get(unit)
    for command in known.exec_start if known else ():
        named = re.search(r"\s(?:-c|--config|--config-file)[= ](\S+)", command)
        if known and named and named[1] != path:
            return known.commanded_by or known.fragment
    return None


def units_for(expected: Iterable[Expectation]) -> tuple[str, ...]:
    """Return the units of those expectations that have one."""
    return tuple(UNITS[each.check] for each in expected if each.check in UNITS)


def enabled(facts: Facts, unit: str) -> str:
    """Return `enabled` if a unit starts at boot and is active, `enabled, but …` if it is not active.

    Otherwise `disabled`, another state in systemd's terms, or `not installed`.
    """
    known = facts.units.get(unit)
    if known is None or not known.exists:
        return "not installed"
    if not known.enabled:
        return known.file_state or "disabled"
    return "enabled" if known.active or known.starting else f"enabled, but {known.active_state}"
