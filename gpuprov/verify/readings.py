"""Readings that several areas share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuprov.verify.modules import Node


def unit_state(host: Node, unit: str) -> str:
    """`enabled` when it starts at boot and has started now; otherwise what is wrong."""
    seen = host.service(unit).systemd_properties
    enabled, active = seen.get("UnitFileState") or seen.get("LoadState", "unknown"), seen.get("ActiveState")
    return enabled if enabled != "enabled" or active == "active" else f"enabled, but {active}"
