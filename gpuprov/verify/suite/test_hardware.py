"""Checks of hardware: GPUs on the bus and in the driver, and the rest of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.model.lock import LockedGroup
from gpuprov.verify.observers.gpu import FORMAT

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

DIMMS = "dmidecode -t memory | grep -E 'Locator|Size'"
PORTS = "grep -s . /sys/class/infiniband/*/ports/*/rate /sys/class/net/*/speed"
# RDMA is InfiniBand or RoCE, depending on the site.
KINDS = {"rdma": ("infiniband", "roce")}
"""Kind of port in a lock → kinds as observed; others are the same."""


@pytest.mark.check("gpu.model")
def test_gpus_are_of_the_model(host: Node, group: LockedGroup) -> None:
    """Check that every GPU on the bus has one of the PCI ids of the locked model."""
    assert {gpu.id for gpu in host.gpu.on_bus} <= set(group.hardware.gpu_pci_ids)


@pytest.mark.check("gpu.count", "nvidia-smi -L")
def test_bus_has_every_gpu(host: Node, expected: int) -> None:
    """Check that the PCI bus has exactly the expected number of GPUs."""
    assert len(host.gpu.on_bus) == expected


@pytest.mark.check("gpu.visible", "nvidia-smi -L", "dmesg | grep -iE 'nvrm|xid'")
def test_driver_has_every_gpu_of_the_bus(host: Node, expected: int) -> None:
    """Check that the driver has the expected number of GPUs, and the same ones as the bus."""
    assert host.gpu.count == expected
    assert sorted(gpu.address for gpu in host.gpu.in_driver) == [gpu.address for gpu in host.gpu.on_bus]


@pytest.mark.check("gpu.confidential", f"nvidia-smi --query-gpu=index,protected_memory.total {FORMAT}")
def test_confidential_computing_is_as_stated(host: Node, expected: str) -> None:
    """Check which GPUs of the driver have protected memory: all, or none. Fails without a GPU."""
    on, count = host.gpu.confidential, host.gpu.count
    assert count > 0
    assert ("on" if len(on) == count else "off" if not on else f"on for GPU {', '.join(on)}") == expected


@pytest.mark.check("gpu.nvswitches", "dmesg | grep -iE 'nvswitch|nvrm'")
def test_every_nvswitch_is_on_the_bus(host: Node, expected: int) -> None:
    """Check that the PCI bus has at least the expected number of NVSwitches."""
    assert host.server.nvswitches >= expected


@pytest.mark.check("secure_boot.state", "mokutil --sb-state", "mokutil --list-enrolled")
def test_secure_boot_is_enforced_and_knows_the_certificate(
    host: Node, group: LockedGroup, expected: str
) -> None:
    """Check the state of Secure Boot, and whether the certificate of compiled modules is enrolled."""
    seen = host.secure_boot.state
    if seen.startswith("on") and group.secure_boot and group.components.driver.compiled:
        known = host.secure_boot.knows(group.secure_boot.fingerprint)
        seen += f", certificate {'enrolled' if known else 'not enrolled'}"
    assert seen == expected


@pytest.mark.check("hardware.cpu_cores", "lscpu")
def test_every_core_is_there(host: Node, expected: int) -> None:
    """Check that the node has at least the expected number of physical cores."""
    assert host.server.cores >= expected


@pytest.mark.check("hardware.memory_mib", DIMMS)
def test_all_memory_is_there(host: Node, expected: int) -> None:
    """Check that the kernel has at least the expected memory in MiB."""
    assert host.server.memory_mib >= expected


@pytest.mark.check("hardware.nvme", "lsblk -d")
def test_every_drive_is_there(host: Node, expected: dict[str, float]) -> None:
    """Check that the node has at least the expected number and total size of NVMe drives.

    The size is not compared if the kernel shows no NVMe disk.
    """
    assert host.server.nvme_drives >= expected.get("count", 0)
    size = host.server.nvme_tb
    assert size is None or size >= expected.get("total_tb", 0)


@pytest.mark.check("hardware.nics", PORTS)
def test_every_port_is_up_at_its_speed(host: Node, group: LockedGroup) -> None:
    """Check that enough ports of each kind have at least their speed; an unknown speed is accepted."""
    for wanted in group.hardware.nics:
        ports = [
            gbits
            for kind in KINDS.get(wanted.kind, (wanted.kind,))
            for gbits in host.server.ports.get(kind, [])
        ]
        fast = [gbits for gbits in ports if gbits is None or gbits >= wanted.speed_gbits]
        assert len(fast) >= wanted.count, f"{wanted}, found {sorted(map(str, ports), reverse=True)}"
