"""Rules of RDMA: DOCA-OFED's drivers, and how a network card reads a GPU's memory.

Sources: NVIDIA GPU Operator documentation, "GPUDirect RDMA and GPUDirect Storage" (common prerequisites);
GPUDirect Storage release notes, "MLNX_OFED/DOCA and File System Requirements".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuprov.catalog.records import Flavour, GpuModel, System
from gpuprov.catalog.version import Version

SOURCE = ("op-rdma",)
KERNEL = Version("5.12")
"""First kernel with which a network card reads a GPU's memory by DMA-BUF."""
_TURING = Version("7.5")


def without_dma_buf(
    gpus: Iterable[GpuModel], flavour: Flavour | None, kernel: Version | None
) -> Iterator[str]:
    """Yield what makes DMA-BUF impossible: proprietary modules, a kernel before `KERNEL`, GPUs before Turing;
    a flavour or kernel of None counts as possible.
    """
    if flavour == "proprietary":
        yield "the proprietary modules"
    if kernel is not None and kernel < KERNEL:
        yield f"kernel {kernel}"
    yield from (gpu.id for gpu in gpus if gpu.compute_capability < _TURING)


def doca_supports(system: System, release: Version | None) -> bool:
    """Return whether a release of DOCA-Host may support a system; None is the repository's newest."""
    return release is None or system.doca_first is None or release >= system.doca_first
