"""What a node is made of. No role mends it: a person has to look."""

from __future__ import annotations

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation


def expectations(group: LockedGroup) -> list[Expectation]:
    """The GPUs, then the rest of the server."""
    return [*gpus(group), *server(group), *secure_boot(group)]


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


ON, ENROLLED = "on", "on, certificate enrolled"
"""What both witnesses say of Secure Boot when it is as it must be."""


def secure_boot(group: LockedGroup) -> list[Expectation]:
    """Secure Boot enforced; where the fleet signs, its certificate enrolled: `subject` is the fingerprint."""
    if group.secure_boot is None:
        return []
    if not group.components.driver.compiled:
        return [Expectation("secure_boot.state", ON, None)]
    return [Expectation("secure_boot.state", ENROLLED, None, subject=group.secure_boot.fingerprint)]
