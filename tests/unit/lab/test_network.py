"""Addresses of nodes, and the table of firewall rules."""

from __future__ import annotations

import json

import pytest

from gpuprov.errors import GpuprovError
from gpuprov_lab.network import RANGE, Link, free_address, ruleset, taken_addresses


def test_an_address_is_drawn_again_while_it_is_taken() -> None:
    draws = iter([0, 0, 7])
    assert free_address({"198.18.0.2"}, lambda _: next(draws)) == "198.18.0.9"


def test_the_last_and_the_first_address_are_never_given() -> None:
    assert free_address(set(), lambda _: 0) == "198.18.0.2"
    assert free_address(set(), lambda limit: limit - 1) == "198.18.255.254"


def test_a_full_range_is_refused() -> None:
    with pytest.raises(GpuprovError, match="take a lab down"):
        free_address({str(address) for address in RANGE})


def test_addresses_are_taken_by_our_links_alone() -> None:
    listing = [
        {"ifname": "eth0", "addr_info": [{"local": "192.0.2.2"}]},
        {"ifname": "gplab0005", "addr_info": [{"local": "198.18.0.1", "address": "198.18.0.5"}]},
        {"ifname": "tun0", "addr_info": [{"local": "198.18.0.1", "address": "198.18.0.6"}]},
    ]
    assert taken_addresses(json.dumps(listing)) == {"198.18.0.5"}
    assert taken_addresses("") == set()


def test_the_name_of_a_veth_tells_the_address_and_fits_the_kernel() -> None:
    assert Link("gpuprov-a-node1", "198.18.1.5").veth == "gplab0105"
    assert len(Link("gpuprov-a-node1", "198.18.255.254").veth) <= 15


def test_rules_name_the_ports_and_remember_forwarding() -> None:
    text = ruleset({8080, 80}, "0")
    assert "tcp dport { 80, 8080 } accept" in text
    assert 'comment "ip_forward was 0"' in text
