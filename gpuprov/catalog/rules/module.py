"""Rules of the kernel module's flavour, one per host.

Source: NVIDIA Driver Installation Guide, "Kernel Modules"; driver README, "Open Linux Kernel Modules".
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuprov.catalog.records import Branch, Flavour, GpuModel

FIRST_OPEN = 515
OPEN_BY_DEFAULT = 560
OPEN_ONLY = 615


def gpu_flavours(gpu: GpuModel) -> frozenset[Flavour]:
    """Return the flavours for the GPU: only proprietary before Turing, only open for Blackwell and Grace
    superchips.

    The `kernelopen` flag of supported-gpus.json is not enough: in 595 it is set on legacy chips too.
    """
    if gpu.open_kernel_module == "unsupported":
        return frozenset({"proprietary"})
    if gpu.open_kernel_module == "required":
        return frozenset({"open"})
    return frozenset({"open", "proprietary"})


def branch_flavours(branch: int, record: Branch | None = None) -> frozenset[Flavour]:
    """Return the flavours of the branch by its record; without one by its number: open from 515, only
    open from 615.
    """
    if record is not None:
        shipped: set[Flavour] = set()
        if record.open_modules != "none":
            shipped.add("open")
        if record.proprietary_modules:
            shipped.add("proprietary")
        return frozenset(shipped)
    if branch >= OPEN_ONLY:
        return frozenset({"open"})
    return frozenset({"open", "proprietary"} if branch >= FIRST_OPEN else {"proprietary"})


def host_flavours(gpus: Iterable[GpuModel], branch: int, record: Branch | None = None) -> frozenset[Flavour]:
    """Return the flavours for every GPU of the host that the branch contains; empty: impossible."""
    flavours = branch_flavours(branch, record)
    for gpu in gpus:
        flavours &= gpu_flavours(gpu)
    return flavours


def default_flavour(gpus: Iterable[GpuModel], branch: int, record: Branch | None = None) -> Flavour | None:
    """Return the default flavour: open from 560 on, proprietary before, if the host allows it.

    Otherwise the only flavour that the host allows; None if it allows none.
    """
    allowed = host_flavours(gpus, branch, record)
    preferred: Flavour = "open" if branch >= OPEN_BY_DEFAULT else "proprietary"
    if preferred in allowed:
        return preferred
    return next(iter(allowed), None)


def open_is_experimental(gpu: GpuModel, record: Branch) -> bool:
    """Return whether the branch's open flavour is alpha or beta on that GPU: GeForce and workstation before
    560.
    """
    return gpu.segment != "data-center" and record.open_modules_geforce_workstation in ("alpha", "beta")
