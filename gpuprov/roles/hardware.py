"""What a node is made of. No role mends it: a person has to look."""

from __future__ import annotations

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation


def expectations(group: LockedGroup) -> list[Expectation]:
    """The GPUs, then the rest of the server."""
    return [*gpus(group), *server(group)]


def gpus(group: LockedGroup) -> list[Expectation]:
    """The GPUs that are there."""
    hardware = group.hardware
    return [
        Expectation("gpu.model", hardware.gpu_pci_ids, None),
        Expectation("gpu.count", hardware.gpu_count, None),
        Expectation("gpu.visible", hardware.gpu_count, None, reboot=True, needs_driver=True),
    ]


def server(group: LockedGroup) -> list[Expectation]:
    """Switches, cores, memory, drives and ports that the lock states; each at least."""
    hardware = group.hardware
    drives = hardware.nvme.model_dump(exclude_none=True) if hardware.nvme else None
    stated = {
        "gpu.nvswitches": hardware.nvswitches,
        "hardware.cpu_cores": hardware.cpu_cores,
        "hardware.memory_mib": hardware.memory_mib,
        "hardware.nvme": drives or None,
        "hardware.nics": [str(nic) for nic in hardware.nics] or None,
    }
    return [Expectation(check, value, None) for check, value in stated.items() if value is not None]
