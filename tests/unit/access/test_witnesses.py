"""Drift and verify parse a node's output independently and find the same faults."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.access.ruleset import BASICS, by_number
from gpuprov.drift.observations import OBSERVERS
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.nftables import parse_table
from gpuprov.roles import Expectation
from gpuprov.roles.firewall import CHAINS, FLUSHES
from gpuprov.verify.observers.firewall import Firewall
from gpuprov.verify.observers.sshd import option

# Output of `nft -p list table inet gpuprov`, nftables 1.0.6; the set is long enough to be wrapped.
TABLE = """\
table inet gpuprov {
\tset fleet4 {
\t\ttype ipv4_addr
\t\tflags interval
\t\telements = { 10.0.0.1, 10.0.0.2,
\t\t\t     192.0.2.0/24 }
\t}

\tchain input {
\t\ttype filter hook input priority filter; policy drop;
\t\tct state established,related accept
\t\ttcp dport { 22, 2222 } accept
\t}
}
"""
BOTH = f"{TABLE[:-2]}\n\tchain forward {{\n\t\tct status dnat drop\n\t}}\n}}\n"
ASKED = [["/usr/sbin/sshd -D", "root", "127.0.0.1", None, None]]
SSHD = "port 22\nport 2222\npermitrootlogin without-password\npasswordauthentication no\nallowgroups ops\n"


def seen(check: str, expected: Any, **collectors: Any) -> Any:
    """Return the actual value of a check, by these answers of collectors."""
    facts = Facts("node", "", 0.0, collectors)
    return OBSERVERS[check](facts, Expectation(check, expected, None))


def test_a_table_is_read_set_by_set_and_rule_by_rule() -> None:
    table = parse_table(TABLE)
    assert table
    assert table.networks == {"fleet4": ["10.0.0.1", "10.0.0.2", "192.0.2.0/24"]}
    assert table.chains["input"][1:] == [
        "ct state established,related accept",
        "tcp dport { 22, 2222 } accept",
    ]
    assert parse_table("") is None


def test_a_rule_that_was_slipped_in_is_seen() -> None:
    loosened = TABLE.replace("\t\tct state", "\t\taccept\n\t\tct state")
    rules = seen("firewall.input", None, firewall={"text": TABLE})
    assert "accept" not in rules
    assert "accept" in seen("firewall.input", rules, firewall={"text": loosened})
    assert seen("firewall.input", rules, firewall={"text": ""}) is None


@pytest.mark.parametrize(
    ("text", "same"),
    [(BOTH, True), (BOTH.replace(" 2222 ", " 22 "), False), (TABLE, False), (BOTH[:-4], False), ("", False)],
    ids=["all", "another port", "one chain", "a part", "nothing"],
)
def test_both_see_what_the_file_of_rules_would_load(text: str, same: bool) -> None:
    table = parse_table(BOTH)
    assert table
    stated = {"networks": table.networks, **table.chains}
    host: Any = object.__new__(Firewall)
    host.__dict__["run"] = lambda command, path: SimpleNamespace(stdout=text)
    assert (host.loaded("/etc/gpuprov/firewall.nft", stated["networks"], CHAINS) == stated) is same
    assert (seen("firewall.at_boot", stated, firewall={"text": BOTH, "at_boot": text}) == stated) is same


def test_a_unit_that_flushes_all_tables_must_load_ours_again() -> None:
    load = "{ path=/bin/sh ; argv[]=/bin/sh -c exec /usr/sbin/nft -f /etc/gpuprov/firewall.nft ; }"
    theirs = "ExecReload={ path=/usr/sbin/nft ; argv[]=/usr/sbin/nft -f /etc/nftables.conf ; }"
    shown = f"ExecStartPost={load}\n{theirs}\nExecReload={load}\nExecStopPost={load}\n"
    wanted = ["reload", "start", "stop"]

    def survives(text: str, table: str = TABLE) -> Any:
        return seen("firewall.survives", wanted, firewall={"text": table, "flushing": text})

    assert survives(shown) == survives(shown, table="") == wanted
    assert survives(f"{shown}{theirs}\n") == ["start", "stop"]
    assert survives("") == []


@pytest.mark.parametrize(("text", "found"), [("# Unit nftables.service is masked.\n", FLUSHES), ("", [])])
def test_a_masked_unit_flushes_no_table(text: str, found: list[str]) -> None:
    host: Any = object.__new__(Firewall)
    host.__dict__["run"] = lambda command: SimpleNamespace(stdout=text)
    assert host.reloading_actions("/etc/gpuprov/firewall.nft") == found


def test_systemd_listening_in_the_place_of_sshd_counts_on_its_ports_alone() -> None:
    found = {"sshd": ["2222"], "systemd": ["22", "111"]}
    assert seen("ssh.ports", [22, 2222], listening=found) == [22, 2222]
    assert seen("ssh.ports", [2222], listening=found) == [2222]


@pytest.mark.parametrize(
    ("keyword", "value"),
    [("port", "22 2222"), ("permitrootlogin", "prohibit-password"), ("allowgroups", "ops"), ("banner", None)],
)
def test_both_witnesses_read_an_option_alike(keyword: str, value: str | None) -> None:
    assert option(SSHD, keyword) == value
    sshd = {"text": SSHD, "lines": [], "answers": ASKED, "unread": [], "unclear": []}
    assert seen("ssh.options", {keyword: "x"}, sshd=sshd) == {keyword: value}


def test_protocols_are_numbers_where_rules_are_loaded_and_read() -> None:
    assert by_number(
        ["meta l4proto ipv6-icmp accept", "meta l4proto icmp accept", "tcp dport 22 accept"]
    ) == [
        "meta l4proto 58 accept",
        "meta l4proto 1 accept",
        "tcp dport 22 accept",
    ]
    assert not [rule for rule in by_number(BASICS) if re.search(r"l4proto [a-z]", rule)]
