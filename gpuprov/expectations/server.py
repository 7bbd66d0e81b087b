"""What a node is made of, beside its GPUs. No role mends it: a person has to look."""

from __future__ import annotations

from gpuprov.expectations.statement import Expectation
from gpuprov.model.lock import LockedGroup


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
