"""Parsers of `nft -p list table`, and of what nftables.service does besides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuprov.untrusted import lines_of

_LAST = {"ExecStartPost": "start", "ExecReload": "reload", "ExecStopPost": "stop"}
"""Properties of the last command when a unit starts, is reloaded, stops (systemd.service(5))."""


@dataclass(frozen=True)
class Table:
    """One nftables table; rules and a chain's head are in the format of `nft`, in order."""

    networks: Mapping[str, list[str]]
    chains: Mapping[str, list[str]]


@dataclass(frozen=True)
class Flushing:
    """Each action of nftables.service, which flushes every table, → its last command; its drop-ins."""

    commands: Mapping[str, str]
    drop_ins: tuple[str, ...]


def parse_flushing(shown: str) -> Flushing:
    """Parse the output of `systemctl show` for nftables.service; without output there are no commands."""
    found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    commands = {verb: found.get(key, "") for key, verb in _LAST.items()}
    return Flushing(commands, tuple(found.get("DropInPaths", "").split()))


def parse_table(text: str) -> Table | None:
    """Parse the sets and chains in the output of `nft -p list table`; return None for an empty text: there is
    no such table.
    """
    if not text.strip():
        return None
    networks: dict[str, list[str]] = {}
    chains: dict[str, list[str]] = {}
    for kind, name, lines in _blocks(text):
        if kind == "set":
            _, there, rest = "\n".join(lines).partition("elements = {")
            elements, closed, _ = rest.partition("}")
            networks[name] = [each.strip() for each in elements.split(",")] if there and closed else []
        else:
            chains[name] = [line.strip() for line in lines if line.strip()]
    return Table(networks, chains)


def _blocks(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield kind, name and lines of each complete set and chain: from `\tset NAME {` to `\t}`."""
    head: tuple[str, str] | None = None
    lines: list[str] = []
    for line in lines_of(text):
        if head and line.startswith("\t}"):
            yield (*head, lines)
            head = None
        elif head:
            lines.append(line)
        elif line.startswith(("\tset ", "\tchain ")) and line.endswith(" {"):
            words = line.split()
            head, lines = ((words[0], words[1]) if len(words) == 3 else None), []
