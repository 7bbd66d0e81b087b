"""Observations of systemd units: enabled at boot, and active."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.units import Unit
from gpuprov.roles import UNITS, Expectation
from gpuprov.roles.container_toolkit import CDI_SERVICE
from gpuprov.roles.firewall import BESIDE
from gpuprov.roles.overruling import APPLIED_BY, UNMET
from gpuprov.roles.ssh_hardening import SSHD_UNITS

FURTHER: Mapping[str, tuple[str, ...]] = {
    **APPLIED_BY,
    "ssh.at_boot": SSHD_UNITS,
    "container_toolkit.cdi": (CDI_SERVICE,),
    "firewall.unit": BESIDE,
}
"""Check → units that it reads in addition to that of `UNITS`."""


def unit_state(facts: Facts, expectation: Expectation) -> str:
    """Return the state of a check's unit, as `enabled` does; a masked one is as disabled as one can be."""
    state = enabled(facts, UNITS[expectation.check])
    return "disabled" if expectation.expected == "disabled" and state.startswith("masked") else state


def replaced_by(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield what `in_place_of` does, of a check's unit."""
    yield from in_place_of(facts, UNITS[expectation.check])


def in_place_of(facts: Facts, unit: str) -> Iterator[str | None]:
    """Yield the file in place of the package's or gpuprov's unit, and the places of another program and of
    conditions that fail.
    """
    if known := facts.units.get(unit):
        yield known.replaced_by
        yield known.commanded_by if known.other_program else None
        yield known.unmet


def commanded_by(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the file in place of a unit, and the place of a command that `own_unit_state` notes."""
    yield from replaced_by(facts, expectation)
    unit, place = facts.units.get(UNITS[expectation.check]), _command_place(facts, expectation)
    if _foreign(place):
        yield place
    elif unit and _another_command(unit, expectation):
        yield unit.fragment
    if unit and expectation.subject:
        yield from _changes(unit)


def own_unit_state(facts: Facts, expectation: Expectation) -> str:
    """Return a unit's state, with a note if its command is not the check's subject, or set by a file that is
    neither gpuprov's nor the package's.

    A unit whose command is stated is gpuprov's: any drop-in of it is noted too.
    """
    state, unit = unit_state(facts, expectation), facts.units.get(UNITS[expectation.check])
    if unit is None or state != "enabled":
        return state
    if _another_command(unit, expectation) or _foreign(unit.commanded_by):
        return "enabled, with another command"
    return "enabled, changed by a drop-in" if expectation.subject and _changes(unit) else state


def _changes(unit: Unit) -> list[str]:
    """Return the drop-ins of only this unit, without those of all services."""
    return [path for path in unit.drop_ins if f"/{unit.name}.d/" in path]


def _another_command(unit: Unit, expectation: Expectation) -> bool:
    """Return whether the check states a unit's command as its subject, and the unit has another one."""
    return expectation.subject is not None and unit.exec_start != (expectation.subject,)


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
    """Return the units of those expectations that have one, and the further ones that they read."""
    checks = [each.check for each in expected]
    own = tuple(UNITS[check] for check in checks if check in UNITS)
    return (*own, *(unit for check in checks for unit in FURTHER.get(check, ())))


def enabled(facts: Facts, unit: str) -> str:
    """Return `at_boot` of a unit, `enabled, but …` if it is not active."""
    state, known = at_boot(facts, unit), facts.units.get(unit)
    if known is None or state != "enabled" or known.active or known.starting:
        return state
    return f"enabled, but {known.active_state}"


def not_applied(facts: Facts, expectation: Expectation) -> str | None:
    """Return `UNIT is STATE` of a unit in `APPLIED_BY` that does not apply a check's settings at boot, or
    None.
    """
    states = ((unit, at_boot(facts, unit, static=True)) for unit in APPLIED_BY[expectation.check])
    return next((f"{unit} is {state}" for unit, state in states if state != "enabled"), None)


def not_applied_by(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield what `in_place_of` does, of the units in `APPLIED_BY` of a check."""
    for unit in APPLIED_BY[expectation.check]:
        yield from in_place_of(facts, unit)


def at_boot(facts: Facts, unit: str, *, static: bool = False) -> str:
    """Return `enabled` if a unit starts at boot, from the unit file of its package or of gpuprov.

    If another file replaces the unit's own, `enabled, by another unit file`; if one lets it start another
    program, `enabled, with another command`; if conditions keep it from starting, `UNMET`. Otherwise
    `disabled`, another state in systemd's terms such as `masked`, or `not installed`.

    Args:
        static: whether a unit that cannot be enabled starts, as those of systemd do.
    """
    known = facts.units.get(unit)
    if known is None or not known.exists:
        return "not installed"
    if not (known.enabled or (static and known.file_state == "static")):
        return known.file_state or "disabled"
    return "enabled, by another unit file" if known.replaced_by else hindered(known) or "enabled"


def hindered(unit: Unit) -> str:
    """Return the state of an enabled unit that starts another program, or nothing; empty without a fault."""
    if unit.other_program:
        return "enabled, with another command"
    return UNMET if unit.unmet else ""
