"""`host.firewall`: access to a node, as the kernel reports it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from gpuprov.roles.firewall import FLUSHES
from gpuprov.untrusted import lines_of
from gpuprov.verify.observers.base import Observed

RULES = "nft -sp list table inet gpuprov"
MASKED = "# Unit nftables.service is masked."
"""Whole output of `systemctl cat` for a masked unit."""
LOADED = f"unshare --net sh -c 'nft -f \"$0\" && {RULES}' %s"
"""Loads a file of rules into a network namespace that ends with the command."""


class Firewall(Observed):
    """Observer of the kernel's rules in gpuprov's table, and of the units that load them."""

    @cached_property
    def _text(self) -> str:
        """The table as nft prints it, without counters; empty if there is no such table."""
        return str(self.run(RULES).stdout)

    def chain(self, name: str) -> list[str]:
        """Return the lines inside a chain in order, as nft prints them, stripped: its type, and its rules.

        Empty without such a chain.
        """
        return _lines(self._text, name)

    def networks(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the elements of the sets with these names, without sets that do not exist or are empty."""
        return _elements(self._text, names)

    def loaded(self, rules: str, networks: Iterable[str], chains: Iterable[str]) -> dict[str, Any]:
        """Return `networks`, and the lines of each chain, of the table that a file of rules loads.

        Those of `networks` and `chain`, without a table if nft does not load the file.
        """
        text = str(self.run(LOADED, rules).stdout)
        return {"networks": _elements(text, networks), **{name: _lines(text, name) for name in chains}}

    def reloading_actions(self, rules: str) -> list[str]:
        """Return the actions of nftables.service (`reload`, `start`, `stop`) that also load gpuprov's rules.

        Only the last ExecStartPost=, ExecReload= or ExecStopPost= line in the unit's files counts. Sorted.
        All of them for a masked unit: it never starts, and flushes nothing.

        Args:
            rules: path of the file with gpuprov's rules.
        """
        last: dict[str, str] = {}
        text = self.run("systemctl cat nftables.service").stdout
        if text.strip() == MASKED:
            return sorted(FLUSHES)
        for key, command in re.findall(r"(?m)^Exec(StartPost|Reload|StopPost)=(.*)$", text):
            last[key.removesuffix("Post").lower()] = command
        return sorted(verb for verb, command in last.items() if f"-f {rules}" in command)

    def beside(self, units: Iterable[str]) -> list[str]:
        """Return those of the units, other firewalls, that run, are about to run, or start at boot."""
        asked = {
            unit: self.run("systemctl is-active %s; systemctl is-enabled %s", unit, unit) for unit in units
        }
        on = {"active", "activating", "reloading", "enabled"}
        return [unit for unit, answer in asked.items() if on.intersection(answer.stdout.split())]

    def __repr__(self) -> str:
        return "<firewall>"


def _lines(text: str, name: str) -> list[str]:
    """Return the stripped lines inside a chain of `nft list table`."""
    return [line.strip() for line in block(text, "chain", name) if line.strip()]


def _elements(text: str, names: Iterable[str]) -> dict[str, list[str]]:
    """Return set → its elements in `nft list table`, of those sets that have any."""
    found = {}
    for name in names:
        _, there, rest = "\n".join(block(text, "set", name)).partition("elements = {")
        elements, closed, _ = rest.partition("}")
        if there and closed:
            found[name] = [each.strip() for each in elements.split(",")]
    return found


def block(text: str, kind: str, name: str) -> list[str]:
    """Return the lines inside a set or a chain of `nft list table`; empty if it is missing or incomplete.

    Args:
        kind: `set` or `chain`.
    """
    lines = iter(lines_of(text))
    if f"\t{kind} {name} {{" not in lines:  # reads the lines up to its head
        return []
    body: list[str] = []
    for line in lines:
        if line.startswith("\t}"):
            return body
        body.append(line)
    return []
