"""Readings of systemd units: whether they start at boot, and have started."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpuprov.probe.facts import Facts
from gpuprov.roles import UNITS, Expectation


def unit_state(facts: Facts, expectation: Expectation) -> str:
    """How the unit is that a check is about, as `enabled` tells it."""
    return enabled(facts, UNITS[expectation.check])


def commanded_by(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Who says what a unit of ours starts, where that is neither gpuprov nor the package."""
    place = _command_place(facts, expectation)
    yield place if _foreign(place) else None


def own_unit_state(facts: Facts, expectation: Expectation) -> str:
    """As `unit_state`, of a unit for which gpuprov says what it starts; a file of the package's may, too."""
    state, foreign = unit_state(facts, expectation), _foreign(_command_place(facts, expectation))
    return f"{state}, with a command of somebody else's" if state == "enabled" and foreign else state


def _command_place(facts: Facts, expectation: Expectation) -> str | None:
    unit = facts.units.get(UNITS[expectation.check])
    return unit.commanded_by if unit else None


def _foreign(place: str | None) -> bool:
    return (place or "").startswith(("/etc/", "/run/"))


def reads_elsewhere(facts: Facts, unit: str, path: str) -> str | None:
    """Who has a daemon read another file of configuration than the one at `path`; None where no one has."""
    known = facts.units.get(unit)
    for command in known.exec_start if known else ():
        named = re.search(r"\s(?:-c|--config|--config-file)[= ](\S+)", command)
        if known and named and named[1] != path:
            return known.commanded_by or known.fragment
    return None


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
