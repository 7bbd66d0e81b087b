"""The lab's output for the rest of gpuprov: an ordinary fleet.yml with its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from gpuprov_lab.node import Node


def fleet_text(nodes: Sequence[Node], profile: str, identity_file: Path, known_hosts: Path) -> str:
    """Return a fleet.yml with one group for each combination of system and kernel, named after the system.

    A lab node runs this machine's kernel, so the kernel to build for is the one installed on it; its apt only
    reaches the distribution's own archive.
    """
    groups: dict[str, dict[str, Any]] = {}
    for node in nodes:
        kind = {
            "profile": profile,
            "os": node.os,
            "stack": {"repository": "distribution"},
            "settings": {"kernel": node.kernel},
        }
        name = next(name for name in _names(node.os) if groups.get(name, kind).items() >= kind.items())
        groups.setdefault(name, {**kind, "hosts": {}})["hosts"][node.name] = node.address
    ssh = {"user": "root", "identity_file": str(identity_file), "known_hosts": str(known_hosts)}
    return yaml.safe_dump({"groups": groups, "ssh": ssh}, sort_keys=False)


def _names(os: str) -> list[str]:
    """Return candidates for a group's name: `debian12`, `debian12-2`, …, `debian12-999`."""
    return [os, *(f"{os}-{number}" for number in range(2, 1000))]
