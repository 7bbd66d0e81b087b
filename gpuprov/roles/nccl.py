"""NCCL, and what /etc/nccl.conf tells it."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, packages, unwanted, version
from gpuprov.roles.expectation import Expectation


def expectations(group: LockedGroup) -> list[Expectation]:
    """Its packages and its configuration."""
    found = packages("nccl.packages", group.components.nccl, "nccl")
    stated = group.setting("nccl")
    if stated is not None:
        values = {name: str(value) for name, value in stated.items()}
        found.append(Expectation("nccl.configuration", values, "nccl"))
    return found


def variables(group: LockedGroup) -> dict[str, Any]:
    """Version, packages, configuration."""
    nccl = group.components.nccl
    return {
        "nccl_version": version(nccl),
        "nccl_packages": closure(nccl),
        "nccl_unwanted": unwanted(group, "nccl"),
        "nccl_configuration": group.setting("nccl"),
    }
