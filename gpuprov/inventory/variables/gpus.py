"""Variables of `gpu_settings`."""

from __future__ import annotations

from typing import Any

from gpuprov.lock import LockedGroup


def gpu_settings(group: LockedGroup) -> dict[str, Any]:
    """Persistence and clocks."""
    clocks = group.setting("clocks") or {}
    return {
        "gpu_settings_persistence": group.setting("persistence"),
        "gpu_settings_graphics_clock_mhz": clocks.get("graphics"),
        "gpu_settings_memory_clock_mhz": clocks.get("memory"),
    }
