"""The lab's output for the rest of gpuprov: an ordinary fleet.yml with its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpuprov.catalog import platforms
from gpuprov_lab.images import MINIMAL, PLAYED, RECIPES
from gpuprov_lab.node import Node


def system_of(node: Node) -> str:
    """Return the catalog's id of a node's system: `rhel9` of `rocky9-played`."""
    if node.os in RECIPES:
        return RECIPES[node.os].os
    name = node.os.removesuffix(MINIMAL).removesuffix(PLAYED)
    family = name.rstrip(".0123456789")
    return platforms.system_of(family) + name.removeprefix(family)


def fleet_text(
    nodes: Sequence[Node],
    profile: str,
    identity_file: Path,
    known_hosts: Path,
    repositories: Mapping[str, Mapping[str, str]] = {},
) -> str:
    """Return a fleet.yml with one group for each combination of system and kernel, named after the system.

    A lab node runs this machine's kernel, so the kernel to build for is the one installed on it; its apt
    only reaches the distribution's own archive.

    Args:
        repositories: those of a mirror, from which NVIDIA's packages come.
    """
    groups: dict[str, dict[str, Any]] = {}
    for node in nodes:
        kind = {
            "profile": profile,
            "os": system_of(node),
            "stack": {"repository": "nvidia" if repositories else "distribution"},
            "settings": {"kernel": node.kernel},
        }
        name = next(
            name for name in _names(system_of(node)) if groups.get(name, kind).items() >= kind.items()
        )
        groups.setdefault(name, {**kind, "hosts": {}})["hosts"][node.name] = node.address
    ssh = {"user": "root", "identity_file": str(identity_file), "known_hosts": str(known_hosts)}
    sources = {"repositories": dict(repositories)} if repositories else {}
    return yaml.safe_dump({"groups": groups, **sources, "ssh": ssh}, sort_keys=False)


def _names(os: str) -> list[str]:
    """Return candidates for a group's name: `debian12`, `debian12-2`, …, `debian12-999`."""
    return [os, *(f"{os}-{number}" for number in range(2, 1000))]
