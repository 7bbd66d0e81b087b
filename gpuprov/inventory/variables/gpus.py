"""Variables of `gpu_settings`."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup


def gpu_settings(group: LockedGroup) -> dict[str, Any]:
    """Persistence, clocks, power limit and modes."""
    clocks = group.setting("clocks") or {}
    return {
        "gpu_settings_persistence": group.setting("persistence"),
        "gpu_settings_graphics_clock_mhz": clocks.get("graphics"),
        "gpu_settings_memory_clock_mhz": clocks.get("memory"),
        "gpu_settings_power_limit_w": group.setting("power_limit"),
        "gpu_settings_compute_mode": group.setting("compute_mode") or "unset",
        "gpu_settings_ecc": group.setting("ecc"),
        "gpu_settings_mig": group.setting("mig"),
    }
