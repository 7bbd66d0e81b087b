"""Parser of a GPU's health in `nvidia-smi -q -x`: error counters, memory repairs, link, temperature, fans.

Field names are those of NVIDIA's nvsmi_device DTDs; a counter that the GPU does not have is `None`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from gpuprov.probe.parse.gpu import pci_address
from gpuprov.probe.parse.smi import gpu_elements
from gpuprov.probe.parse.values import integer, number, switch, text_or_none


@dataclass(frozen=True, slots=True)
class Errors:
    """Memory errors counted by ECC, uncorrectable ones by kind of memory."""

    correctable: int | None
    uncorrectable_sram: int | None
    uncorrectable_dram: int | None


@dataclass(frozen=True, slots=True)
class Repairs:
    """Repairs of faulty memory: rows remapped (Ampere and later), pages retired (before)."""

    pending: bool | None
    failed: bool | None
    uncorrectable: int | None
    correctable: int | None
    banks_without_spare: int | None
    retired_single: int | None
    retired_double: int | None
    retirement_pending: bool | None
    repair_pending: bool | None
    """Whether a channel or a TPC will be repaired by the next reset."""
    unrepairable: bool | None


@dataclass(frozen=True, slots=True)
class PcieLink:
    """The current link, and the maxima of both ends."""

    generation: int | None
    device_generation: int | None
    host_generation: int | None
    width: int | None
    max_width: int | None
    replays: int | None


@dataclass(frozen=True, slots=True)
class Health:
    """One GPU; `index` is its place in the document."""

    index: int
    pci_address: str | None
    recovery_action: str | None
    """`None` if the driver is too old to report it; `none` if no action is needed."""
    volatile: Errors
    aggregate: Errors
    sram_threshold_exceeded: bool | None
    repairs: Repairs
    link: PcieLink
    utilization: int | None
    memory_utilization: int | None
    performance_state: str | None
    fan: str | None
    temperature: int | None
    memory_temperature: int | None
    slowdown_margin: int | None
    """Degrees C until the driver lowers clocks; negative above the threshold."""
    throttled_us: Mapping[str, int]
    """Reason → microseconds since the driver was loaded, if it counts them."""
    clique: str | None
    cluster: str | None
    degraded_fabric: tuple[str, ...]
    virtualization: str | None
    """How a virtual machine has the GPU: `pass-through`, `vgpu`; None on bare metal."""
    licence: str | None
    """State of the licence of the guest driver (GRID) as printed: `Licensed (Expiry: …)`, `Unlicensed`."""


def parse_health(answer: str | bytes) -> tuple[Health, ...]:
    """Parse all GPUs of an output of `nvidia-smi -q -x` that `gpu_elements` can read."""
    return tuple(_health(index, gpu) for index, gpu in gpu_elements(answer))


def _health(index: int, gpu: Element) -> Health:
    """Return the health in a GPU's element; its recovery action is None if missing or `N/A`."""
    action = gpu.findtext("gpu_recovery_action")
    return Health(
        index=index,
        pci_address=pci_address(gpu.findtext("pci/pci_bus_id") or gpu.get("id")),
        recovery_action=None if action is None or action.strip() == "N/A" else action.strip().lower(),
        volatile=_errors(gpu, "ecc_errors/volatile"),
        aggregate=_errors(gpu, "ecc_errors/aggregate"),
        sram_threshold_exceeded=switch(gpu.findtext("ecc_errors/aggregate/sram_threshold_exceeded")),
        repairs=_repairs(gpu),
        link=_link(gpu),
        utilization=integer(gpu.findtext("utilization/gpu_util")),
        memory_utilization=integer(gpu.findtext("utilization/memory_util")),
        performance_state=text_or_none(gpu.findtext("performance_state")),
        fan=gpu.findtext("fan_speed"),
        temperature=integer(gpu.findtext("temperature/gpu_temp")),
        memory_temperature=integer(gpu.findtext("temperature/memory_temp")),
        slowdown_margin=_margin(gpu),
        throttled_us=_throttled(gpu),
        clique=text_or_none(gpu.findtext("fabric/cliqueId")),
        cluster=text_or_none(gpu.findtext("fabric/clusterUuid")),
        degraded_fabric=tuple(
            f"{each.tag}: {each.text.strip()}"
            for each in gpu.iterfind("fabric/health/*")
            if each.text
            and each.text.strip().lower() in ("true", "yes", "degraded", "unhealthy")
            and each.tag != "partition_assigned"
        ),
        virtualization=_virtualization(gpu.findtext("gpu_virtualization_mode/virtualization_mode")),
        licence=_licence(gpu),
    )


def _virtualization(text: str | None) -> str | None:
    """Return the mode in lower case; None for none, and where the driver does not report it."""
    mode = (text_or_none(text) or "none").lower()
    return None if mode == "none" else mode


def _licence(gpu: Element) -> str | None:
    """Return the state of the guest driver's licence, None if not stated; before driver 450 the element has
    another name.
    """
    products = ("vgpu_software_licensed_product", "grid_licensed_product")
    texts = (text_or_none(gpu.findtext(f"{product}/license_status")) for product in products)
    return next((text for text in texts if text), None)


def _sum(element: Element | None, *names: str) -> int | None:
    """Return the sum of those elements that have a number; None if none has."""
    counts = [] if element is None else [integer(element.findtext(name)) for name in names]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _errors(gpu: Element, block: str) -> Errors:
    """Parse ECC errors in `block` (volatile or aggregate) of any generation.

    From Turing on SRAM and DRAM are separate; before, device memory is separate from caches.
    """
    now = gpu.find(block)
    single, double = gpu.find(f"{block}/single_bit"), gpu.find(f"{block}/double_bit")
    old_dram = _sum(double, "device_memory")
    old_total = _sum(double, "total")
    dram = _sum(now, "dram_uncorrectable")
    sram = _sum(now, "sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded")
    if dram is None and sram is None and old_total is not None:
        dram, sram = old_dram or 0, old_total - (old_dram or 0)
    correctable = _sum(now, "sram_correctable", "dram_correctable")
    return Errors(_sum(single, "total") if correctable is None else correctable, sram, dram)


def _repairs(gpu: Element) -> Repairs:
    """Return the repairs of memory in a GPU's element; None for a value that the driver does not report."""
    rows, pages = "remapped_rows", "retired_pages"
    pending = [
        switch(gpu.findtext(f"ecc_errors/{name}"))
        for name in ("channel_repair_pending", "tpc_repair_pending")
    ]
    return Repairs(
        pending=switch(gpu.findtext(f"{rows}/remapped_row_pending")),
        failed=switch(gpu.findtext(f"{rows}/remapped_row_failure")),
        uncorrectable=integer(gpu.findtext(f"{rows}/remapped_row_unc")),
        correctable=integer(gpu.findtext(f"{rows}/remapped_row_corr")),
        banks_without_spare=integer(
            gpu.findtext(f"{rows}/row_remapper_histogram/row_remapper_histogram_none")
        ),
        retired_single=integer(gpu.findtext(f"{pages}/multiple_single_bit_retirement/retired_count")),
        retired_double=integer(gpu.findtext(f"{pages}/double_bit_retirement/retired_count")),
        retirement_pending=switch(gpu.findtext(f"{pages}/pending_retirement")),
        repair_pending=None if pending == [None, None] else True in pending,
        unrepairable=switch(gpu.findtext("ecc_errors/unrepairable_memory")),
    )


def _link(gpu: Element) -> PcieLink:
    """Return the PCIe link in a GPU's element; None for a value that the driver does not report."""
    info = "pci/pci_gpu_link_info"
    return PcieLink(
        generation=integer(gpu.findtext(f"{info}/pcie_gen/current_link_gen")),
        device_generation=integer(
            gpu.findtext(f"{info}/pcie_gen/max_device_link_gen")
            or gpu.findtext(f"{info}/pcie_gen/max_link_gen")
        ),
        host_generation=integer(gpu.findtext(f"{info}/pcie_gen/max_host_link_gen")),
        width=integer(gpu.findtext(f"{info}/link_widths/current_link_width")),
        max_width=integer(gpu.findtext(f"{info}/link_widths/max_link_width")),
        replays=integer(gpu.findtext("pci/replay_counter")),
    )


def _margin(gpu: Element) -> int | None:
    """Return degrees C until the driver lowers clocks; None if unknown.

    It is computed from limits relative to the slowdown (Hopper and later), or from the threshold itself.
    """
    left = integer(gpu.findtext("temperature/gpu_temp_tlimit"))
    if left is not None:
        return left - (integer(gpu.findtext("temperature/gpu_temp_slow_tlimit_threshold")) or 0)
    now = integer(gpu.findtext("temperature/gpu_temp"))
    threshold = integer(gpu.findtext("temperature/gpu_temp_slow_threshold"))
    return None if now is None or threshold is None else threshold - now


def _throttled(gpu: Element) -> dict[str, int]:
    """Return reason → microseconds of lower clocks; {} if the driver does not count them."""
    found = {}
    for each in gpu.iterfind("clocks_event_reasons_counters/*"):
        value = number(each.text)
        if value is not None:
            found[re.sub(r"^clocks_event_reasons_counters_", "", each.tag)] = int(value)
    return found
