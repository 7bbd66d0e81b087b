"""Observations of NCCL's variables: from the environment, a login's own file, the system's file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.effective import InForce, Variables
from gpuprov.probe.parse.state import Nccl
from gpuprov.roles import Expectation
from gpuprov.roles.nccl import CONFIGURATION, changes_connections, for_root_alone


@observes("nccl.configuration", "nccl", "variables")
def _nccl_configuration(facts: Facts, expectation: Expectation) -> Any:
    """Return expected variable → its effective value, None if it is not set, and others that are set."""
    variables, conf = facts.variables, facts.nccl
    named = {**dict.fromkeys(_set(variables, conf)), **expectation.expected}
    return {name: _in_force(variables, conf, name, value).value for name, value in named.items()}


def _set(variables: Variables, conf: Nccl) -> Iterator[str]:
    """Yield the variables that are set and can change connections; a name can come more than once."""
    everywhere = (variables.logins, *variables.others, conf.settings, *conf.own.values())
    yield from (name for given in everywhere for name in given if changes_connections(name))


@names_who("nccl.configuration")
def _places(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield for each differing variable the place that sets its effective value."""
    for name, value in expectation.expected.items():
        yield _in_force(facts.variables, facts.nccl, name, value).place


def _in_force(variables: Variables, conf: Nccl, name: str, wanted: str | None) -> InForce:
    """Return the first value found: a variable, ~/.nccl.conf, /etc/nccl.conf.

    If NCCL_CONF_FILE names another file, the value is a note that names it. Files of logins count only if
    they differ from `wanted`. Source: NCCL's documentation, "Environment variables".
    """
    variable = variables.of(name, wanted)
    if variable.value is not None:
        return variable
    other = variables.of("NCCL_CONF_FILE", None)
    if other.value:
        return InForce(f"as {other.value} says", other.place)
    for path, settings in conf.own.items():
        if settings.get(name, wanted) != wanted:
            return InForce(settings[name], path)
    value = conf.settings.get(name)
    return InForce(for_root_alone(value) if conf.closed else value, CONFIGURATION)
