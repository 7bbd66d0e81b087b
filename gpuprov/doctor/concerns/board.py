"""Rules for the driver against the board: the flavour of its module in both directions, and its branch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuprov.doctor.concerns.driver import BOUND_ELSEWHERE, module_for
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, rule
from gpuprov.doctor.reference import catalog
from gpuprov.errors import InvalidInput
from gpuprov.probe.parse.pci import PciDevice
from gpuprov.untrusted import ShellLine, shell

if TYPE_CHECKING:
    from gpuprov.catalog.records import Flavour, GpuModel

_DIRECTIONS: tuple[tuple[Flavour, Flavour, tuple[str, ...]], ...] = (
    ("open", "proprietary", (r"requires use of the NVIDIA open kernel modules",)),
    (
        "proprietary",
        "open",
        (
            r"installed in this system is not supported by open",
            r"Open nvidia\.ko is only ready for use on Data Center GPUs",
        ),
    ),
)
"""Needed flavour, the other one, and patterns of the driver's messages about it."""
INSTALL: dict[Flavour, ShellLine] = {
    "open": shell("sudo apt install nvidia-open   (or: sudo dnf module install nvidia-driver:open-dkms)"),
    "proprietary": shell(
        "sudo apt install cuda-drivers-BRANCH   (or: sudo dnf module install nvidia-driver:BRANCH-dkms)"
    ),
}


def unanswered(seen: Examination) -> list[PciDevice]:
    """Return the GPUs for the host's driver that nvidia-smi does not list."""
    there = {gpu.pci_address for gpu in seen.smi.gpus}
    reserved = ("vfio-pci", "pci-stub")
    return [gpu for gpu in seen.pci_gpus if gpu.address not in there and gpu.driver not in reserved]


def model(gpu: PciDevice) -> GpuModel | None:
    """Return the catalog's record of a device, or None if it has none; raises as `find_gpu` for a virtual
    GPU.
    """
    from gpuprov.catalog.gpu_names import find_gpu

    try:
        return find_gpu(catalog(), gpu.id)
    except InvalidInput:
        return None


def flavour(seen: Examination) -> Flavour | None:
    """Return the flavour of the loaded module, else of the one on disk for the running kernel, or None."""
    if seen.loaded_driver:
        return "open" if seen.loaded_driver.open else "proprietary"
    module = module_for(seen, seen.kernel) if "disk_modules" not in seen.missing else None
    return None if module is None or module.open is None else "open" if module.open else "proprietary"


@rule("driver.flavour", "D10", "D123", source="open-mod open-696 negativo-158", after=BOUND_ELSEWHERE)
def wrong_flavour(seen: Examination) -> Iterator[Fault]:
    """Report a module of the flavour that a GPU cannot use: by the driver's message in the log, or by the
    catalog for a GPU that nvidia-smi does not list.
    """
    if "kernel_log" in seen.missing and seen.loaded_driver:
        return
    silent, is_there = unanswered(seen), flavour(seen)
    for needed, other, patterns in _DIRECTIONS:
        said = seen.log_lines(*patterns)[-1:] if "kernel_log" not in seen.missing else []
        known = [gpu for gpu in silent if is_there == other and only_flavour(gpu) == needed]
        if not silent or is_there == needed or not (said or known):
            continue
        yield Fault(
            "broken",
            f"this GPU needs NVIDIA's {needed} kernel module, and the {other} one is installed",
            (
                *(line.quoted(300) for line in said),
                *(
                    f"PCI {gpu.address}: {gpu.id}, for which only the {needed} module works"
                    for gpu in known[:4]
                ),
                *([f"module: {is_there}"] if is_there else []),
            ),
            "from Blackwell on (and on Grace) the proprietary module does not start the GPU"
            if needed == "open"
            else "the open module needs the GPU's own firmware processor (GSP), which GPUs before Turing "
            "lack",
            (INSTALL[needed], shell("sudo reboot")),
            f"stack.module: {needed}",
        )


def only_flavour(gpu: PciDevice) -> Flavour | None:
    """Return the only flavour that the catalog has for a GPU; None for both, or for an unknown GPU; raises as
    `model`.
    """
    from gpuprov.catalog.rules.module import gpu_flavours

    record = model(gpu)
    flavours = gpu_flavours(record) if record and not record.guessed else frozenset()
    return next(iter(flavours)) if len(flavours) == 1 else None


_RELEASE = r"\d{3}\.\d{1,3}(?:\.\d{1,3})?"


@rule(
    "driver.unsupported",
    "D124",
    source="op-1371 open-mod older-words",
    after=("driver.flavour", "driver.too_new"),
)
def unsupported(seen: Examination) -> Iterator[Fault]:
    """Report a GPU that the driver's release does not know, by its message: a newer GPU than the driver, or a
    virtual GPU of a hypervisor.
    """
    if "kernel_log" in seen.missing:
        return
    lines = seen.log_lines(
        r"installed in this system is not supported by the .*driver release",
        r"^NVRM: (?:installed )?in this system is not supported by the"
        rf"(?: {_RELEASE}(?: NVIDIA Linux)?)?$",
    )
    releases = seen.log_lines(r"^NVRM: NVIDIA .* driver release\.$")  # the last line of a message in lines
    for gpu in unanswered(seen) if lines else ():
        text = " ".join(line.text for line in (lines[-1], *releases[-1:]))
        found = re.search(rf"(?:supported by the|NVIDIA) ({_RELEASE})\b", text)
        version, record = found[1] if found else "installed", model(gpu)
        least = record.min_driver_branch if record else None
        newer = bool(found and least and int(version.split(".")[0]) < least)
        guest = seen.virtual and not newer
        yield Fault(
            "broken",
            f"the driver {version} does not know the GPU {gpu.address} ({gpu.id})",
            (
                lines[-1].quoted(300),
                *([f"catalog: {record.id} needs branch {least} or newer"] if record and newer else []),
                *(["/proc/cpuinfo: a virtual machine"] if guest else []),
            ),
            "the GPU is newer than the driver"
            if newer
            else "a virtual GPU (vGPU) of the hypervisor, which needs NVIDIA's guest driver (GRID); "
            "or the GPU is newer than the driver"
            if guest
            else "the GPU is newer than the driver, or a variant for other products",
            (
                *([shell("install the guest driver of the hypervisor's vGPU release")] if guest else []),
                shell("gpuprov resolve --gpu {} --os SYSTEM names a driver that knows it", gpu.id),
            ),
            f"stack.driver: {least}" if newer else "stack.driver: VERSION",
        )
        return
