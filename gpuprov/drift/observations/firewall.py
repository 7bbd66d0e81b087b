"""Readings of our nftables table."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import commanded_by, own_unit_state
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation

observes("firewall.unit", "units")(own_unit_state)
names_who("firewall.unit")(commanded_by)


@observes("firewall.networks", "firewall")
def _networks(facts: Facts, expectation: Expectation) -> Any:
    return facts.firewall.networks if facts.firewall else None


@observes("firewall.input", "firewall")
def _input(facts: Facts, expectation: Expectation) -> Any:
    return facts.firewall.chains.get("input") if facts.firewall else None


@observes("firewall.forward", "firewall")
def _forward(facts: Facts, expectation: Expectation) -> Any:
    return facts.firewall.chains.get("forward") if facts.firewall else None
