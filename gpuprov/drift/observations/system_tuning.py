"""Observations of limits, kernel parameters, processors and the environment of logins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import not_applied, not_applied_by
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.limits import PamLimit, ResourceLimits
from gpuprov.roles import Expectation
from gpuprov.roles.system_tuning import DEBUGGING
from gpuprov.untrusted.parsing import whole_number

IN_KIBIBYTES = ("memlock", "stack")  # limits.conf(5)


@observes("tuning.limits", "limits")
def _limits(facts: Facts, expectation: Expectation) -> Any:
    """Return expected limit → its value for logins as `_login` does; sizes are in bytes."""
    return {name: _login(facts.limits, name) for name in expectation.expected}


@names_who("tuning.limits")
def _limits_by(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the lines that set a differing limit."""
    for name, value in expectation.expected.items():
        for kind in ("soft", "hard"):
            for domain in ("*", "root"):
                row = _last(facts.limits.pam, name, kind, domain)
                yield row.place if row and _limit(row) != value else None


@observes("tuning.service_limits", "limits")
def _service_limits(facts: Facts, expectation: Expectation) -> Any:
    """Return expected limit → systemd's default for services, in bytes or `unlimited`.

    It is a text if the soft and the hard one differ.
    """
    return {name: _of_services(facts.limits.systemd, name) for name in expectation.expected}


def _of_services(systemd: Mapping[str, str], name: str) -> int | str | None:
    """Return a default limit of services; None if systemd does not state it."""
    soft, hard = (_of_service(systemd, name, kind) for kind in ("soft", "hard"))
    return hard if soft == hard else f"{soft}, at most {hard}"


def _of_service(systemd: Mapping[str, str], name: str, kind: str) -> int | str | None:
    """Return the `soft` or `hard` default limit of services; None if systemd does not state it."""
    hard = systemd.get(f"DefaultLimit{name.upper()}")
    return _bytes(systemd.get(f"DefaultLimit{name.upper()}Soft", hard) if kind == "soft" else hard)


@names_who("tuning.service_limits")
def _service_limits_by(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield for each limit the place of systemd's default, or None."""
    for name in expectation.expected:
        yield facts.limits.systemd_places.get(f"DefaultLimit{name.upper()}")


@observes("tuning.sysctl", "sysctls")
def _sysctl(facts: Facts, expectation: Expectation) -> Any:
    """Return expected kernel parameter → its current value, None if the kernel does not have it."""
    return {name: facts.sysctls.get(name) for name in expectation.expected}


@observes("tuning.sysctl_at_boot", "boot_sysctls", "units")
def _sysctl_at_boot(facts: Facts, expectation: Expectation) -> Any:
    """Return expected kernel parameter → the value that the next boot sets, None if no file sets it; or why
    systemd sets none.
    """
    found = facts.boot_sysctls
    values = {name: found[name].value or None if name in found else None for name in expectation.expected}
    return not_applied(facts, expectation) or values


@names_who("tuning.sysctl_at_boot")
def _sysctl_by(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the places that keep systemd from it, then that of each parameter's value at boot, or None."""
    yield from not_applied_by(facts, expectation)
    for name in expectation.expected:
        yield facts.boot_sysctls[name].place if name in facts.boot_sysctls else None


@observes("tuning.hugepages", "hugepages")
def _hugepages(facts: Facts, expectation: Expectation) -> Any:
    """Return the mode of transparent huge pages, None if the kernel has none."""
    return facts.hugepages


@observes("tuning.governor", "cpu")
def _governor(facts: Facts, expectation: Expectation) -> Any:
    """Return the processors' governors as text; a virtual machine has none, which is returned as expected."""
    governors = sorted(facts.cpu.governors)
    return ", ".join(governors) or expectation.expected


@observes("tuning.environment", "variables")
def _environment(facts: Facts, expectation: Expectation) -> Any:
    """Return expected variable → its value in logins, or the differing one of services; None if unset."""
    variables = facts.variables
    return {name: variables.of(name, value).value for name, value in expectation.expected.items()}


@names_who("tuning.environment")
def _environment_by(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield for each variable the place that sets its value, or None."""
    for name, value in expectation.expected.items():
        yield facts.variables.of(name, value).place


@observes("tuning.debugging", "environment", "variables")
def _debugging(facts: Facts, expectation: Expectation) -> Any:
    """Return `VARIABLE in PLACE` for each variable of `DEBUGGING` that a login or a service gets."""
    written = {name: path for path, variables in facts.environment.items() for name in variables}
    given = {name: facts.variables.of(name, None) for name in DEBUGGING}
    return [
        f"{name} in {written.get(name) or each.place or 'the environment'}"
        for name, each in given.items()
        if each.value is not None
    ]


def _login(limits: ResourceLimits, item: str) -> int | str | None:
    """Return the limit of both root and other users, soft and hard; as text if the values differ, None if not
    set.

    Without a line that sets it, a login keeps the limit of its service, such as sshd's. A line for a name
    overrides one for `*`, and `*` does not apply to root (limits.conf(5)).
    """
    values = {
        _limit(row)
        if (row := _last(limits.pam, item, kind, domain))
        else _of_service(limits.systemd, item, kind)
        for kind in ("soft", "hard")
        for domain in ("*", "root")
    }
    if len(values) == 1:
        return values.pop()
    return ", ".join(sorted(str(value or "not set") for value in values))


@names_who("tuning.debugging")
def _debugging_by(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield for each variable of `DEBUGGING` the place that sets it, or None."""
    for name in DEBUGGING:
        yield facts.variables.of(name, None).place


def _last(rows: tuple[PamLimit, ...], item: str, kind: str, domain: str) -> PamLimit | None:
    """Return the last line about an item, a kind (`soft`, `hard`) and a domain, which applies, or None."""
    return next((row for row in reversed(rows) if _applies(row, item, kind, domain)), None)


def _applies(row: PamLimit, item: str, kind: str, domain: str) -> bool:
    """Return whether a line sets a limit of this item, kind and domain; `-` is both kinds."""
    return row.item == item and row.kind in (kind, "-") and row.domain == domain


def _limit(row: PamLimit) -> int | str:
    """Return a line's value: bytes of sizes, else a number; `unlimited`, or text that is no number."""
    number = whole_number(row.value)
    if number is None:
        return "unlimited" if row.value in ("unlimited", "infinity", "-1") else row.value
    return number * (1024 if row.item in IN_KIBIBYTES else 1)


def _bytes(text: str | None) -> int | str | None:
    """Return systemd's value as a number of bytes, `unlimited` for `infinity`; others and None stay."""
    number = whole_number(text or "")
    return ("unlimited" if text == "infinity" else text) if number is None else number
