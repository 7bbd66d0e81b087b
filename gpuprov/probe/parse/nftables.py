"""Parser of `nft -p list table`: sets to elements, chains to their lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_BLOCK = re.compile(r"^\t(set|chain) (\S+) \{\n(.*?)^\t\}", re.MULTILINE | re.DOTALL)
_ELEMENTS = re.compile(r"elements = \{(.*?)\}", re.DOTALL)


_LAST = {"ExecStartPost": "start", "ExecReload": "reload", "ExecStopPost": "stop"}
"""Properties of the last command when a unit starts, is reloaded, stops (systemd.service(5))."""


@dataclass(frozen=True)
class Table:
    """One nftables table; rules and a chain's head are in the format of `nft`, in order.

    `flushed` maps each action of nftables.service, which flushes every table, to its last command;
    `drop_ins` are the files that may change that.
    """

    networks: Mapping[str, list[str]]
    chains: Mapping[str, list[str]]
    flushed: Mapping[str, str]
    drop_ins: list[str]


def parse_table(text: str, shown: str = "") -> Table | None:
    """Parse the output of `nft -p list table`; return None if there is no such table.

    Args:
        shown: output of `systemctl show` for nftables.service.
    """
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
    last = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    flushed = {verb: last.get(key, "") for key, verb in _LAST.items()}
    return Table(networks, chains, flushed, last.get("DropInPaths", "").split())
