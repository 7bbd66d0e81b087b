"""Expectations of a node's hardware. No role corrects it: an administrator has to."""

from __future__ import annotations

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import fails

CONFIDENTIAL, NOT_CONFIDENTIAL = "on", "off"
"""Values of `gpu.confidential` in both drift and verify."""
OVERRULED = fails("confidential", "gpu.confidential", "the host of a guest, which sets the mode of its GPU")


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected GPUs, then the rest of the server, then Secure Boot."""
    return [*gpus(group), *confidential(group), *server(group), *secure_boot(group)]


def gpus(group: LockedGroup) -> list[Expectation]:
    """Return the expected models of the GPUs, and their number on the bus and in the driver."""
    hardware = group.hardware
    return [
        Expectation("gpu.model", hardware.gpu_pci_ids, None),
        Expectation("gpu.count", hardware.gpu_count, None),
        Expectation("gpu.visible", hardware.gpu_count, None, reboot=True, needs_driver=True),
    ]


def confidential(group: LockedGroup) -> list[Expectation]:
    """Return what is expected of confidential computing, [] if not stated; no role changes it, as the host
    sets it.
    """
    stated = group.setting("confidential")
    if stated is None:
        return []
    value = CONFIDENTIAL if stated else NOT_CONFIDENTIAL
    return [Expectation("gpu.confidential", value, None, reboot=True, needs_driver=True)]


def server(group: LockedGroup) -> list[Expectation]:
    """Return the minimum of switches, cores, memory, drives and ports, as far as the lock states them."""
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
"""Values of Secure Boot in both drift and verify when it is correct."""


def secure_boot(group: LockedGroup) -> list[Expectation]:
    """Return Secure Boot enforced; if the fleet signs, its certificate enrolled: `subject` is the
    fingerprint.

    Empty if the lock has no Secure Boot. A driver without compiled modules needs no certificate.
    """
    if group.secure_boot is None:
        return []
    if not group.components.driver.compiled:
        return [Expectation("secure_boot.state", ON, None)]
    return [Expectation("secure_boot.state", ENROLLED, None, subject=group.secure_boot.fingerprint)]
