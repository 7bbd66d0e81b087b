"""Checks of the firewall's rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuprov.access.ruleset import admits
from gpuprov.roles.firewall import BESIDE, CHAINS, FIREWALL_RULES, FIREWALL_UNIT, firewall_state
from gpuprov.verify.nodes import NodeUnderTest
from gpuprov.verify.readings import own_unit_state

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


@pytest.mark.check("firewall.unit", "systemctl --no-pager status gpuprov-firewall.service")
def test_rules_come_back_at_boot(host: Node, node: NodeUnderTest, expected: str) -> None:
    """Check that the unit with the rules is enabled and active, with gpuprov's command, and the only one."""
    command = node.wanted["firewall.unit"].subject
    own = own_unit_state(host, FIREWALL_UNIT, command)
    assert firewall_state(own, host.firewall.beside(BESIDE)) == expected


@pytest.mark.check("firewall.controller", 'echo "$SSH_CONNECTION"')
def test_the_locked_rules_admit_the_controller(host: Node, expected: list[str]) -> None:
    """Check that the controller's address is in one of the networks from which SSH is allowed."""
    address = host.sshd.connection[0]
    assert (expected if admits(expected, address) else [address]) == expected


@pytest.mark.check("firewall.survives", "systemctl cat nftables.service")
def test_rules_outlive_the_unit_that_flushes_all_tables(host: Node, expected: list[str]) -> None:
    """Check that each action of nftables.service that flushes all tables loads gpuprov's rules again."""
    assert host.firewall.reloading_actions(FIREWALL_RULES) == expected


@pytest.mark.check("firewall.networks", "nft list sets table inet gpuprov")
def test_sets_hold_the_locked_networks(host: Node, expected: dict[str, list[str]]) -> None:
    """Check that the sets of gpuprov's table contain exactly the locked networks."""
    assert host.firewall.networks(expected) == expected


@pytest.mark.check("firewall.input", "nft -p list chain inet gpuprov input")
def test_what_comes_in_is_judged_by_the_locked_rules(host: Node, expected: list[str]) -> None:
    """Check that the chain `input` has exactly the locked rules, in order."""
    assert host.firewall.chain("input") == expected


@pytest.mark.check("firewall.forward", "nft -p list chain inet gpuprov forward")
def test_what_goes_to_containers_is_judged_by_the_locked_rules(host: Node, expected: list[str]) -> None:
    """Check that the chain `forward` has exactly the locked rules, in order."""
    assert host.firewall.chain("forward") == expected


@pytest.mark.check("firewall.at_boot", f"nft --check --file {FIREWALL_RULES}")
def test_next_boot_loads_the_locked_rules(host: Node, expected: dict[str, Any]) -> None:
    """Check that gpuprov's file of rules, loaded where it has no effect, gives exactly the locked table."""
    assert host.firewall.loaded(FIREWALL_RULES, expected["networks"], CHAINS) == expected
