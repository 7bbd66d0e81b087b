"""`nft -p list table` in its own words: sets to elements, chains to their lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_BLOCK = re.compile(r"^\t(set|chain) (\S+) \{\n(.*?)^\t\}", re.MULTILINE | re.DOTALL)
_ELEMENTS = re.compile(r"elements = \{(.*?)\}", re.DOTALL)


@dataclass(frozen=True)
class Table:
    """One nftables table; rules and a chain's head stand as `nft` prints them, in order."""

    networks: Mapping[str, list[str]]
    chains: Mapping[str, list[str]]


def parse_table(text: str) -> Table | None:
    """What `nft -p list table` prints; None where there is no such table."""
    if not text.strip():
        return None
    networks: dict[str, list[str]] = {}
    chains: dict[str, list[str]] = {}
    for kind, name, body in _BLOCK.findall(text):
        if kind == "set":
            found = _ELEMENTS.search(body)
            networks[name] = [each.strip() for each in found[1].split(",")] if found else []
        else:
            chains[name] = [line.strip() for line in body.splitlines() if line.strip()]
    return Table(networks, chains)
