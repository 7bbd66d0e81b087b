"""The GPUs: which and how many, and how they are set."""

from __future__ import annotations

from gpuprov.expectations.statement import Expectation
from gpuprov.lock import LockedGroup

CLOCKS_UNIT = "gpuprov-gpu-clocks.service"
PERSISTENCE_UNIT = "nvidia-persistenced.service"


def hardware(group: LockedGroup) -> list[Expectation]:
    """The GPUs that are there."""
    hardware = group.hardware
    return [
        Expectation("gpu.model", hardware.gpu_pci_ids, None),
        Expectation("gpu.count", hardware.gpu_count, None),
        Expectation("gpu.visible", hardware.gpu_count, None, reboot=True, needs_driver=True),
    ]


def gpu_settings(group: LockedGroup) -> list[Expectation]:
    """How the GPUs are set."""
    role = "gpu_settings"
    stated = []
    persistence = group.setting("persistence")
    if persistence is not None:
        unit = "enabled" if persistence else "disabled"
        stated += [
            Expectation("gpu.persistence_unit", unit, role),
            Expectation("gpu.persistence", persistence, role, needs_driver=True),
        ]
    clocks = group.setting("clocks")
    if clocks is not None:
        stated += [
            Expectation("gpu.clocks_unit", "enabled", role),
            Expectation("gpu.clocks", clocks, role, needs_driver=True),
        ]
    return stated
