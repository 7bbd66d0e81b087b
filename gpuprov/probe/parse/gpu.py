"""Parser of one GPU in the output of `nvidia-smi -q -x`.

Field names and their changes (`power_readings` became `gpu_power_readings` with driver 530,
`clocks_throttle_reasons` became `clocks_event_reasons`, `compute_processes` became `processes`, PCI domains
grew from four digits to eight) are those of NVIDIA's nvsmi_device DTDs, version 1 to 13.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from gpuprov.probe.parse.values import integer, mebibytes, number, switch, text_or_none, trouble
from gpuprov.untrusted.kept import kept


@dataclass(frozen=True, slots=True)
class Pair:
    """A mode now, and after the next reset or reboot. `None`: the GPU has no such mode."""

    current: bool | None = None
    pending: bool | None = None


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks in MHz. `None`: the driver reports no such clock for this GPU."""

    graphics: int | None = None
    sm: int | None = None
    memory: int | None = None
    video: int | None = None


@dataclass(frozen=True, slots=True)
class Power:
    """Watts. `limit` is enforced now; `requested` the requested limit, if the driver reports both."""

    draw: float | None = None
    limit: float | None = None
    requested: float | None = None
    default: float | None = None
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU. `kind`: C compute, G graphics, or both."""

    pid: int
    kind: str
    name: str
    used_mib: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as reported by its driver. `index` is nvidia-smi's own order."""

    index: int
    name: str | None
    uuid: str | None
    pci_bus_id: str | None
    """nvidia-smi's form: `00000000:3B:00.0`."""
    pci_address: str | None
    """sysfs' form: `0000:3b:00.0`."""
    pci_device_id: str | None
    """vendor:device in lower case: `10de:2335`."""
    pci_subsystem_id: str | None
    architecture: str | None
    brand: str | None
    serial: str | None
    minor: int | None
    vbios: str | None
    persistence_mode: bool | None
    compute_mode: str | None
    performance_state: str | None
    clocks: Clocks
    application_clocks: Clocks
    default_application_clocks: Clocks
    max_clocks: Clocks
    supported_clocks: Mapping[int, tuple[int, ...]]
    """Memory clock → its graphics clocks in MHz, as listed (highest first)."""
    ecc: Pair
    mig: Pair
    mig_devices: int
    memory_total_mib: int | None
    memory_used_mib: int | None
    protected_mib: int | None
    """Memory that confidential computing protects: 0 where it is off, None if the driver does not say."""
    power: Power
    temperature: int | None
    fabric_state: str | None
    fabric_status: str | None
    processes: tuple[Process, ...]
    active_throttle_reasons: tuple[str, ...]
    problems: tuple[str, ...]
    """The driver's errors in place of values, with the field's name: `fan_speed: ERR!`."""


def read_gpu(index: int, gpu: Element, lists: list[str]) -> Gpu:
    """Parse a GPU's element, whose `supported_clocks` is the index of one of the `lists`.

    A value that the driver does not report is None.
    """
    supported = integer(_text(gpu, "supported_clocks"))
    bus_id = _text(gpu, "pci/pci_bus_id") or gpu.get("id")
    return Gpu(
        index=index,
        name=text_or_none(_text(gpu, "product_name", "prod_name")),
        uuid=text_or_none(_text(gpu, "uuid")),
        pci_bus_id=bus_id,
        pci_address=pci_address(bus_id),
        pci_device_id=_pci_id(_text(gpu, "pci/pci_device_id")),
        pci_subsystem_id=_pci_id(_text(gpu, "pci/pci_sub_system_id")),
        architecture=text_or_none(_text(gpu, "product_architecture")),
        brand=text_or_none(_text(gpu, "product_brand")),
        serial=text_or_none(_text(gpu, "serial")),
        minor=integer(_text(gpu, "minor_number")),
        vbios=text_or_none(_text(gpu, "vbios_version")),
        persistence_mode=switch(_text(gpu, "persistence_mode")),
        compute_mode=text_or_none(_text(gpu, "compute_mode")),
        performance_state=text_or_none(_text(gpu, "performance_state")),
        clocks=_clocks(gpu, "clocks"),
        application_clocks=_clocks(gpu, "applications_clocks"),
        default_application_clocks=_clocks(gpu, "default_applications_clocks"),
        max_clocks=_clocks(gpu, "max_clocks"),
        supported_clocks=_supported("" if supported is None else lists[supported]),
        ecc=Pair(switch(_text(gpu, "ecc_mode/current_ecc")), switch(_text(gpu, "ecc_mode/pending_ecc"))),
        mig=Pair(switch(_text(gpu, "mig_mode/current_mig")), switch(_text(gpu, "mig_mode/pending_mig"))),
        mig_devices=len(gpu.findall("mig_devices/mig_device")),
        memory_total_mib=mebibytes(_text(gpu, "fb_memory_usage/total", "memory_usage/total")),
        memory_used_mib=mebibytes(_text(gpu, "fb_memory_usage/used", "memory_usage/used")),
        protected_mib=mebibytes(_text(gpu, "cc_protected_memory_usage/total")),
        power=_power(gpu),
        temperature=integer(_text(gpu, "temperature/gpu_temp")),
        fabric_state=text_or_none(_text(gpu, "fabric/state")),
        fabric_status=text_or_none(_text(gpu, "fabric/status")),
        processes=tuple(_processes(gpu)),
        active_throttle_reasons=tuple(_throttled(gpu)),
        problems=tuple(_problems(gpu)),
    )


def pci_address(bus_id: str | None) -> str | None:
    """Convert `00000000:3B:00.0` → `0000:3b:00.0`, the form of sysfs; drivers before 300 write `0:3b:0`.

    Returns:
        None if it is not a PCI address.
    """
    found = _BUS_ID.fullmatch((bus_id or "").strip())
    if not found:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


_BUS_ID = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?")
_MEMORY_CLOCK = re.compile(r"<value>\s*(\d{1,9})")
_GRAPHICS_CLOCK = re.compile(r"<supported_graphics_clock>\s*(\d{1,9})")


def _text(element: Element, *paths: str) -> str | None:
    """Return the first text at the paths that is not blank, stripped, or None."""
    for path in paths:
        found: Element | None = element
        for name in path.split("/"):  # a path as the argument of find() is ten times slower
            found = found.find(name) if found is not None else None
        if found is not None and found.text and found.text.strip():
            return found.text.strip()
    return None


def _pci_id(text: str | None) -> str | None:
    """Convert `233510DE` → `10de:2335`: nvidia-smi writes the device before the vendor. None for
    other texts.
    """
    found = re.fullmatch(r"(?:0x)?([0-9a-fA-F]{4})([0-9a-fA-F]{4})", text or "")
    return f"{found[2]}:{found[1]}".lower() if found else None


def _clocks(gpu: Element, block: str) -> Clocks:
    """Return the four clocks in one element, such as `max_clocks`, in MHz; None for one that is missing."""
    names = ("graphics_clock", "sm_clock", "mem_clock", "video_clock")
    return Clocks(*(integer(_text(gpu, f"{block}/{name}")) for name in names))


@kept(64, 64 * 1024)
def _supported(block: str) -> Mapping[int, tuple[int, ...]]:
    """Parse a list of supported clocks to memory clock → its graphics clocks; {} if empty.

    A memory clock has one value: with several, each would have all its graphics clocks, and the first counts.
    Each distinct list is parsed once: all GPUs of a model share one.
    """
    clocks: dict[int, tuple[int, ...]] = {}
    for each in block.split("<supported_mem_clock>"):
        if memory := _MEMORY_CLOCK.search(each):
            clocks[int(memory[1])] = tuple(map(int, _GRAPHICS_CLOCK.findall(each)))
    return clocks


def _power(gpu: Element) -> Power:
    """Parse `gpu_power_readings` (530 and later) or `power_readings`, whose `power_limit` was requested."""
    new, old = "gpu_power_readings", "power_readings"

    def watts(*names: str) -> float | None:
        return number(_text(gpu, *(f"{block}/{name}" for block in (new, old) for name in names)))

    return Power(
        draw=watts("instant_power_draw", "power_draw", "average_power_draw"),
        limit=watts("current_power_limit", "enforced_power_limit", "power_limit"),
        requested=watts("requested_power_limit", "power_limit"),
        default=watts("default_power_limit"),
        minimum=watts("min_power_limit"),
        maximum=watts("max_power_limit"),
    )


def _processes(gpu: Element) -> Iterator[Process]:
    """Yield the processes of a GPU, in the elements of new and of old drivers; those without a number are
    left out.
    """
    new = [(process, "") for process in gpu.findall("processes/process_info")]
    old = [(process, "C") for process in gpu.findall("compute_processes/process_info")]
    for process, kind in new + old:
        pid = integer(_text(process, "pid"))
        if pid is not None:
            yield Process(
                pid=pid,
                kind=_text(process, "type") or kind,
                name=_text(process, "process_name") or "",
                used_mib=mebibytes(_text(process, "used_memory")),
            )


def _throttled(gpu: Element) -> Iterator[str]:
    """Yield the names of the active reasons for lower clocks, without their prefix: `sw_power_cap`."""
    for block in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for reason in gpu.iterfind(f"{block}/*"):
            if switch(reason.text):
                yield re.sub(r"^clocks_(?:event|throttle)_reason_", "", reason.tag)


def _problems(gpu: Element) -> Iterator[str]:
    """Yield `field: text` of each field in which the driver printed an error in place of a value."""
    for element in gpu.iter():
        if element.tag != "process_name" and len(element) == 0 and trouble(element.text):
            yield f"{element.tag}: {(element.text or '').strip()}"
