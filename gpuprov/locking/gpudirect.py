"""Choice between DMA-BUF and nvidia-peermem, and what DOCA-OFED and nvidia-fs need of the nodes."""

from __future__ import annotations

from collections.abc import Mapping

from gpuprov.catalog import Catalog
from gpuprov.catalog.records import Flavour, GpuModel, System
from gpuprov.catalog.rules.issues import kernel_version
from gpuprov.catalog.rules.rdma import KERNEL, SOURCE, without_dma_buf
from gpuprov.catalog.version import Version
from gpuprov.errors import Refused
from gpuprov.locking.resolve import ABSENT, AUTO, Answer
from gpuprov.model.lock import Setting
from gpuprov.model.settings.gpudirect import DMA_BUF, PEERMEM
from gpuprov.model.stack import StackPolicy

KEY = "peer_memory"


def with_peer_memory(
    name: str,
    settings: Mapping[str, Setting],
    answer: Answer,
    gpu: GpuModel,
    system: System,
    catalog: Catalog,
) -> dict[str, Setting]:
    """Return the settings with `peer_memory`, how network cards read GPUs' memory, decided; unchanged if not
    stated.

    `auto` is DMA-BUF, or nvidia-peermem where DMA-BUF is not possible.

    Raises:
        Refused: the stated way is not possible, or no way is.
    """
    stated = settings.get(KEY)
    if stated is None:
        return dict(settings)
    missing = _missing(answer, gpu, system)
    ofed = answer.stack.doca_ofed not in (None, ABSENT)
    way = stated.value if stated.value != AUTO else PEERMEM if missing else DMA_BUF
    why = ", ".join(missing)
    if way == DMA_BUF and missing:
        raise Refused(
            f"{name}: peer_memory is {DMA_BUF}, which needs the open modules, kernel {KERNEL} and Turing or"
            f" newer, and the group has {why} [peer-memory-dma-buf]",
            do=f"change that, or state peer_memory: {PEERMEM} and stack: {{doca_ofed: auto}}",
        )
    if way == PEERMEM and not ofed:
        because = f", as the group has {why}" if missing else ""
        raise Refused(
            f"{name}: peer_memory is {PEERMEM}{because}, which needs DOCA-OFED's drivers: the kernel's own do"
            " not know it [peer-memory-ofed]",
            do="state stack: {doca_ofed: auto}" + ("" if missing else f", or peer_memory: {DMA_BUF}"),
        )
    reason = f"{stated.reason}; " + (
        f"{PEERMEM}, as the group has {why}"
        if missing
        else "stated"
        if stated.value == PEERMEM
        else "DMA-BUF needs no further module"
    )
    source = f"{stated.source}; {catalog.cite(*SOURCE)}"
    return {**settings, KEY: Setting(value=way, reason=reason, source=source)}


def _missing(answer: Answer, gpu: GpuModel, system: System) -> list[str]:
    """Return what makes DMA-BUF impossible for a group; [] if it is possible."""
    flavour: Flavour = "proprietary" if answer.stack.module == "proprietary" else "open"
    return list(without_dma_buf([gpu], flavour, _kernel(answer, system)))


def _kernel(answer: Answer, system: System) -> Version | None:
    """Return the stated kernel, else the oldest of the system; None if unknown."""
    return kernel_version(answer.stack.kernel) if answer.stack.kernel else system.kernel


def check_compilers(name: str, stated: StackPolicy) -> None:
    """Check that nodes may have a compiler if DOCA-OFED's modules or nvidia-fs are wanted.

    Raises:
        Refused: the fleet wants nodes without a compiler.
    """
    wanted = [each for each in ("doca_ofed", "gds") if getattr(stated, each) not in (None, ABSENT)]
    if wanted and stated.compiler == "absent":
        raise Refused(
            f"{name}: stack.compiler is absent, and DKMS compiles the modules of {' and '.join(wanted)} on"
            " each node [gpudirect-compiler]",
            do=f"remove compiler, or {' and '.join(wanted)}, from groups.{name}.stack",
        )
