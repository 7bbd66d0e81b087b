"""The GPUs: which and how many, and how they are set."""

from __future__ import annotations

from gpuprov.expectations.statement import Expectation
from gpuprov.model.lock import LockedGroup

CLOCKS_UNIT = "gpuprov-gpu-clocks.service"
PERSISTENCE_UNIT = "nvidia-persistenced.service"
MODES_UNIT = "gpuprov-gpu-modes.service"


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
    return [*stated, *_modes(group)]


def _modes(group: LockedGroup) -> list[Expectation]:
    """Power limit and modes; a GPU that does not have one is as it shall be.

    ECC and MIG are asked for now (`pending`) and come true by a reboot.
    """
    role = "gpu_settings"
    power, compute, ecc, mig = map(group.setting, ("power_limit", "compute_mode", "ecc", "mig"))
    stated = []
    if (power, compute, ecc, mig) != (None, None, None, None):
        stated.append(Expectation("gpu.modes_unit", "enabled", role))
    if power is not None:
        stated.append(Expectation("gpu.power_limit", power, role, needs_driver=True))
    if compute is not None:
        stated.append(Expectation("gpu.compute_mode", compute, role, needs_driver=True))
    if ecc is not None:
        stated.append(Expectation("gpu.ecc_pending", ecc, role, needs_driver=True))
        stated.append(Expectation("gpu.ecc", ecc, None, reboot=True, needs_driver=True))
    if mig is not None:
        stated.append(Expectation("gpu.mig_pending", bool(mig), role, needs_driver=True))
        stated.append(Expectation("gpu.mig", bool(mig), None, reboot=True, needs_driver=True))
        stated.append(Expectation("gpu.mig_layout", sorted(mig), role, needs_driver=True))
    return stated
