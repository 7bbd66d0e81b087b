"""Observations of gpuprov's nftables table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprov.access.ruleset import admits
from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import commanded_by, own_unit_state
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.firewall import BESIDE, CHAINS, FIREWALL_DROP_IN, FIREWALL_RULES, firewall_state


@observes("firewall.unit", "units")
def _unit(facts: Facts, expectation: Expectation) -> str:
    """Return the state of gpuprov's unit, see `firewall_state`."""
    known = filter(None, map(facts.units.get, BESIDE))
    beside = [unit.name for unit in known if unit.active or unit.starting or unit.enabled]
    return firewall_state(own_unit_state(facts, expectation), beside)


names_who("firewall.unit")(commanded_by)


@observes("firewall.controller", "origin")
def _controller(facts: Facts, expectation: Expectation) -> Any:
    """Return the networks from which SSH is allowed if the controller is in one, else its address."""
    return expectation.expected if admits(expectation.expected, facts.origin) else [facts.origin]


@observes("firewall.survives", "firewall")
def _survives(facts: Facts, expectation: Expectation) -> Any:
    """Return the commands of nftables.service, sorted, that load gpuprov's rules again."""
    commands = facts.flushing.commands.items()
    return sorted(verb for verb, command in commands if f"-f {FIREWALL_RULES}" in command)


@names_who("firewall.survives")
def _who_lets_them_go(facts: Facts, expectation: Expectation) -> Iterator[str]:
    """Yield the drop-ins of nftables.service other than gpuprov's."""
    yield from (path for path in facts.flushing.drop_ins if path != FIREWALL_DROP_IN)


@observes("firewall.networks", "firewall")
def _networks(facts: Facts, expectation: Expectation) -> Any:
    """Return set → networks of gpuprov's table; None without the table."""
    return facts.firewall.networks if facts.firewall else None


@observes("firewall.input", "firewall")
def _input(facts: Facts, expectation: Expectation) -> Any:
    """Return the lines of the table's chain `input`; None without the table or the chain."""
    return facts.firewall.chains.get("input") if facts.firewall else None


@observes("firewall.forward", "firewall")
def _forward(facts: Facts, expectation: Expectation) -> Any:
    """Return the lines of the table's chain `forward`; None without the table or the chain."""
    return facts.firewall.chains.get("forward") if facts.firewall else None


@observes("firewall.at_boot", "firewall")
def _at_boot(facts: Facts, expectation: Expectation) -> Any:
    """Return the sets and chains that gpuprov's file of rules loads; None if it loads no table."""
    table = facts.firewall_at_boot
    return (
        {"networks": table.networks, **{name: table.chains.get(name) for name in CHAINS}} if table else None
    )
