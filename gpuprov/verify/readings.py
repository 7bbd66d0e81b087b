"""Readings that checks of several roles share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuprov.verify.modules import Node


def unit_state(host: Node, unit: str) -> str:
    """`enabled` when it starts at boot and has started now; otherwise what is wrong."""
    seen = host.service(unit).systemd_properties
    enabled, active = seen.get("UnitFileState") or seen.get("LoadState", "unknown"), seen.get("ActiveState")
    return enabled if enabled != "enabled" or active == "active" else f"enabled, but {active}"


def part_of(document: Any, wanted: Any) -> Any:
    """What a document says of what is wanted; other keys and items are the site's own."""
    if isinstance(document, dict) and isinstance(wanted, dict):
        return {key: part_of(document.get(key), value) for key, value in wanted.items()}
    if isinstance(document, list) and isinstance(wanted, list):
        return [item for item in document if item in wanted]
    return document
