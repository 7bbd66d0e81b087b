"""Readings of systemd units: whether they start at boot, and have started."""

from __future__ import annotations

from collections.abc import Iterable

from gpuprov.probe.facts import Facts
from gpuprov.roles import UNITS, Expectation


def unit_state(facts: Facts, expectation: Expectation) -> str:
    """How the unit is that a check is about, as `enabled` tells it."""
    return enabled(facts, UNITS[expectation.check])


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
