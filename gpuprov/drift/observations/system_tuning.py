"""Readings of limits, kernel parameters, processors and the environment of logins."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.limits import PamLimit
from gpuprov.roles import Expectation
from gpuprov.roles.system_tuning import DEBUGGING

IN_KIBIBYTES = ("memlock", "stack")  # limits.conf(5)


@observes("tuning.limits", "limits")
def _limits(facts: Facts, expectation: Expectation) -> Any:
    return {name: _login(facts.limits.pam, name) for name in expectation.expected}


@observes("tuning.service_limits", "limits")
def _service_limits(facts: Facts, expectation: Expectation) -> Any:
    systemd = facts.limits.systemd
    return {name: _bytes(systemd.get(f"DefaultLimit{name.upper()}")) for name in expectation.expected}


@observes("tuning.sysctl", "sysctls")
def _sysctl(facts: Facts, expectation: Expectation) -> Any:
    return {name: facts.sysctls.get(name) for name in expectation.expected}


@observes("tuning.hugepages", "hugepages")
def _hugepages(facts: Facts, expectation: Expectation) -> Any:
    return facts.hugepages


@observes("tuning.governor", "cpu")
def _governor(facts: Facts, expectation: Expectation) -> Any:
    """A virtual machine's processors have no governor: what cannot be set does not differ."""
    governors = sorted(facts.cpu.governors)
    return ", ".join(governors) or expectation.expected


@observes("tuning.environment", "environment")
def _environment(facts: Facts, expectation: Expectation) -> Any:
    found: dict[str, str] = {}
    for variables in facts.environment.values():
        found |= variables
    return {name: found.get(name) for name in expectation.expected}


@observes("tuning.debugging", "environment")
def _debugging(facts: Facts, expectation: Expectation) -> Any:
    return [
        f"{name} in {path}"
        for path, variables in facts.environment.items()
        for name in DEBUGGING
        if name in variables
    ]


def _login(rows: tuple[PamLimit, ...], item: str) -> int | str | None:
    """What both root and everybody else get, soft and hard; in words where these are not one value.

    A line for a name counts before one for `*`, and `*` is not for root (limits.conf(5)).
    """
    values = {
        next((_limit(row) for row in reversed(rows) if _applies(row, item, kind, domain)), None)
        for kind in ("soft", "hard")
        for domain in ("*", "root")
    }
    if len(values) == 1:
        return values.pop()
    return ", ".join(sorted(str(value or "not set") for value in values))


def _applies(row: PamLimit, item: str, kind: str, domain: str) -> bool:
    return row.item == item and row.kind in (kind, "-") and row.domain == domain


def _limit(row: PamLimit) -> int | str:
    if not row.value.isdecimal():
        return "unlimited" if row.value in ("unlimited", "infinity", "-1") else row.value
    return int(row.value) * (1024 if row.item in IN_KIBIBYTES else 1)


def _bytes(text: str | None) -> int | str | None:
    """systemd's words: bytes, or `infinity`."""
    return int(text) if text and text.isdecimal() else "unlimited" if text == "infinity" else text
