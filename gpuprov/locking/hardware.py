"""What a profile states of a server's hardware, as the lock records it."""

from __future__ import annotations

from gpuprov.catalog import Catalog
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.errors import Refused
from gpuprov.model.hardware import HardwareProfile, NvmeHardware
from gpuprov.model.lock import Hardware

KERNELS_SHARE = 0.96
"""What a kernel reports of the memory that is sold, at the least: firmware, page tables and crash kernels
take the rest. TorchX counts with the same 4 % for every AWS instance type ("based on empirical
observation"); of 16 DIMMs and fewer per socket one that is gone takes more than that."""


def locked_hardware(catalog: Catalog, profile: str, stated: HardwareProfile) -> Hardware:
    """The hardware that nodes of a profile must have.

    Args:
        profile: its name, for complaints.

    Raises:
        InvalidInput: a GPU that the catalog does not know.
        Refused: the profile does not say which GPUs, or how many.
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
