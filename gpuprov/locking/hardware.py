"""The lock's record of a profile's hardware."""

from __future__ import annotations

from gpuprov.catalog import Catalog
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.errors import Refused
from gpuprov.model.hardware import HardwareProfile, NvmeHardware
from gpuprov.model.lock import Hardware

KERNELS_SHARE = 0.96
"""Least share of the installed memory that a kernel reports: firmware, page tables and crash kernels use the
rest. TorchX also assumes 4 % for every AWS instance type ("based on empirical observation"); with at most 16
DIMMs per socket, a missing one takes more than that.
"""


def locked_hardware(catalog: Catalog, profile: str, stated: HardwareProfile) -> Hardware:
    """Return the hardware that nodes of a profile must have; memory is the share of `KERNELS_SHARE`, in MiB.

    Args:
        profile: its name, for messages.

    Raises:
        InvalidInput: a GPU that is not in the catalog.
        Refused: the profile does not state which GPUs, or how many.
    """
    gpu = stated.gpu
    if gpu.model is None or gpu.count is None:
        raise Refused(
            f"profile {profile!r} does not say which GPUs a server has",
            expected="hardware.gpu.model and hardware.gpu.count",
        )
    record = find_gpu(catalog, gpu.model)
    return Hardware(
        gpu_model=record.id,
        gpu_pci_ids=[f"{record.pci_vendor}:{device}".lower() for device in record.pci_device_ids],
        gpu_count=gpu.count,
        nvlink=gpu.nvlink,
        nvswitches=gpu.nvswitches,
        cpu_cores=stated.cpu_cores,
        memory_mib=None if stated.memory_gib is None else int(stated.memory_gib * 1024 * KERNELS_SHARE),
        nvme=stated.nvme if stated.nvme != NvmeHardware() else None,
        nics=stated.nics,
    )
