"""What `nvidia-smi -q -x` says, of any driver from 340 to today.

Field names and their changes (`power_readings` became `gpu_power_readings` with driver 530,
`clocks_throttle_reasons` became `clocks_event_reasons`, `compute_processes` became `processes`, PCI domains
grew from four digits to eight, `driver_version` gives way to `kmd_version` with 610) are those of NVIDIA's
nvsmi_device DTDs, version 1 to 13.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from xml.etree.ElementTree import Element, ParseError, fromstring

from gpuprov.probe.parse.values import integer, mebibytes, number, switch, text_or_none, trouble


@dataclass(frozen=True, slots=True)
class Pair:
    """A mode now, and after the next reset or reboot. `None`: the GPU has no such mode."""

    current: bool | None = None
    pending: bool | None = None


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks in MHz. `None`: the driver shows no such clock for this GPU."""

    graphics: int | None = None
    sm: int | None = None
    memory: int | None = None
    video: int | None = None


@dataclass(frozen=True, slots=True)
class Power:
    """Watts. `limit` is enforced now; `requested` what was asked for, where the driver tells them apart."""

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
    """One GPU, as its driver sees it. `index` is nvidia-smi's own order."""

    index: int
    name: str | None
    uuid: str | None
    pci_bus_id: str | None
    """As nvidia-smi writes it: `00000000:3B:00.0`."""
    pci_address: str | None
    """The same as sysfs writes it: `0000:3b:00.0`."""
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
    """Memory clock → graphics clocks that go with it, MHz, as listed (highest first)."""
    ecc: Pair
    mig: Pair
    mig_devices: int
    memory_total_mib: int | None
    memory_used_mib: int | None
    power: Power
    temperature: int | None
    fabric_state: str | None
    fabric_status: str | None
    processes: tuple[Process, ...]
    active_throttle_reasons: tuple[str, ...]
    problems: tuple[str, ...]
    """What the driver answered instead of a value, with the field's name: `fan_speed: ERR!`."""


@dataclass(frozen=True, slots=True)
class Smi:
    """One answer of nvidia-smi. With `error` set, `gpus` holds what came before it, possibly nothing."""

    driver_version: str | None = None
    cuda_version: str | None = None
    attached: int | None = None
    gpus: tuple[Gpu, ...] = ()
    error: str | None = None
    warnings: tuple[str, ...] = ()
    """Lines around the document: `WARNING: infoROM is corrupted at gpu 0000:82:00.0`."""


def parse_smi(answer: str | bytes, stderr: str = "") -> Smi:
    """Read one answer of `nvidia-smi -q -x`: the document, half of one, or the sentence it failed with."""
    text = decode(answer)
    first = text.find(_BEGIN)
    if first < 0:
        return Smi(error=_failure(text, stderr))
    end = text.rfind(_END)  # of several documents (--loop), the last complete one is the present
    start, end = (text.rfind(_BEGIN, 0, end), end + len(_END)) if end > first else (first, len(text))
    outside = text[:first] + "\n" + text[end:]
    head, pieces = _split(text[start:end])
    gpus, faults = _gpus(pieces)
    smi = Smi(
        driver_version=_field(head, "kmd_version") or _field(head, "driver_version"),
        cuda_version=_field(head, "cuda_umd_version") or _field(head, "cuda_version"),
        attached=integer(_field(head, "attached_gpus")),
        gpus=gpus,
        warnings=tuple(_sentences(outside)),
    )
    if _END not in text:
        faults = ("the document ends in the middle",)
    return replace(smi, error=_judge(smi, faults, stderr))


def decode(answer: str | bytes) -> str:
    """Text of a capture: UTF-8 or UTF-16 (a PowerShell redirection), with what is neither replaced."""
    if isinstance(answer, bytes):
        utf16 = answer[:2] in (b"\xff\xfe", b"\xfe\xff")
        answer = answer.decode("utf-16" if utf16 else "utf-8", errors="replace")
    return _UNPRINTABLE.sub("", answer.replace("\r\n", "\n"))


def pci_address(bus_id: str | None) -> str | None:
    """`00000000:3B:00.0` → `0000:3b:00.0`, as sysfs names it; drivers before 300 write `0:3b:0`."""
    found = _BUS_ID.fullmatch((bus_id or "").strip())
    if not found:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


_BEGIN, _END = "<nvidia_smi_log", "</nvidia_smi_log>"
_UNPRINTABLE = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\ufeff"
)
_GPU_START, _GPU_END = re.compile(r"(?=<gpu(?:\s[^>]*)?>)"), "</gpu>"
_BUS_ID = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?")
_BARE_AMPERSAND = re.compile(r"&(?!(?:#\d+|#x[0-9a-fA-F]+|amp|lt|gt|quot|apos);)")
_PROCESS_NAME = re.compile(r"(<process_name>)([^\n]*?)(</process_name>)")
_SUPPORTED = re.compile(r"<supported_clocks>(.*?)</supported_clocks>", re.S)
_MEMORY_BLOCK = re.compile(r"<supported_mem_clock>(.*?)</supported_mem_clock>", re.S)
_LISTED_CLOCK = re.compile(r"<(value|supported_graphics_clock)>\s*(\d+)")
_FRAME = re.compile(r"<\?xml[^>]*>|<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>", re.S)
_FAILURES = re.compile(
    r"NVIDIA-SMI (?:has failed|couldn't)|Failed to (?:initialize|properly shut ?down) NVML|version mismatch"
    r"|No devices were found|Unable to determine the device handle|GPU is lost|GPU access blocked"
    r"|Unknown Error|Function Not Found|Insufficient Permissions|Invalid combination of input|Killed"
    r"|nvidia-smi: (?:command )?not found|No such file or directory|Segmentation fault|Bus error"
    r"|timed out|did not answer|no answer in",
    re.I,
)


def _split(document: str) -> tuple[str, list[str]]:
    """What comes before the first GPU, and each GPU's own piece of the document."""
    head, *pieces = _GPU_START.split(document)
    return head, pieces


def _field(head: str, name: str) -> str | None:
    """Text of one element before the first GPU."""
    found = re.search(rf"<{name}>\s*([^<]*?)\s*</{name}>", head)
    return text_or_none(found[1]) if found else None


def _element(piece: str) -> tuple[Element, str]:
    """One GPU's element, and its list of supported clocks: most of the text, and no tree is made of it.

    Raises:
        ParseError: the piece is cut off or damaged.
    """
    supported = _SUPPORTED.search(piece)
    piece = _SUPPORTED.sub("", piece[: piece.rfind(_GPU_END) + len(_GPU_END)] if _GPU_END in piece else piece)
    piece = _PROCESS_NAME.sub(lambda m: m[1] + m[2].replace("<", "&lt;").replace(">", "&gt;") + m[3], piece)
    element = fromstring(_BARE_AMPERSAND.sub("&amp;", piece))  # noqa: S314 - a piece has no document type
    return element, supported[1] if supported else ""


def _judge(smi: Smi, faults: tuple[str, ...], stderr: str) -> str | None:
    """What is wrong with an answer that holds a document, or `None`."""
    if faults:
        expected = f" of {smi.attached}" if smi.attached is not None else ""
        return f"{'; '.join(faults)}: {len(smi.gpus)}{expected} GPUs are readable"
    if smi.gpus:
        return None
    failed = [line for line in (*smi.warnings, *_sentences(stderr)) if _FAILURES.search(line)]
    return " ".join(failed) or "No devices were found"


def _failure(text: str, stderr: str) -> str:
    """One line for an answer without a document."""
    lines = list(_sentences(text)) + list(_sentences(stderr))
    if not lines:
        return "nvidia-smi answered nothing"
    if "NVSMI LOG" in text:
        return "this is the text of `nvidia-smi -q`; its XML is written by `nvidia-smi -q -x`"
    if _FAILURES.search(" ".join(lines)):
        return " ".join(lines)[:600]
    return f"not an answer of nvidia-smi -q -x: {lines[0][:120]!r}"


def _sentences(text: str) -> Iterator[str]:
    return (line.strip() for line in _FRAME.sub("", text).splitlines() if line.strip())


def _text(element: Element, *paths: str) -> str | None:
    """Text at the first of these paths that has any."""
    for path in paths:
        found = element.find(path)
        if found is not None and found.text and found.text.strip():
            return found.text.strip()
    return None


def _gpus(pieces: list[str]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """GPUs that can be read, by their place in the document, and what is wrong with the others."""
    gpus, faults = [], []
    for index, piece in enumerate(pieces):
        try:
            gpus.append(_gpu(index, *_element(piece)))
        except ParseError as error:
            faults.append(f"GPU {index} of the document is damaged ({error})")
    return tuple(gpus), tuple(faults)


def _gpu(index: int, gpu: Element, supported: str) -> Gpu:
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
        supported_clocks=_supported(supported),
        ecc=Pair(switch(_text(gpu, "ecc_mode/current_ecc")), switch(_text(gpu, "ecc_mode/pending_ecc"))),
        mig=Pair(switch(_text(gpu, "mig_mode/current_mig")), switch(_text(gpu, "mig_mode/pending_mig"))),
        mig_devices=len(gpu.findall("mig_devices/mig_device")),
        memory_total_mib=mebibytes(_text(gpu, "fb_memory_usage/total", "memory_usage/total")),
        memory_used_mib=mebibytes(_text(gpu, "fb_memory_usage/used", "memory_usage/used")),
        power=_power(gpu),
        temperature=integer(_text(gpu, "temperature/gpu_temp")),
        fabric_state=text_or_none(_text(gpu, "fabric/state")),
        fabric_status=text_or_none(_text(gpu, "fabric/status")),
        processes=tuple(_processes(gpu)),
        active_throttle_reasons=tuple(_throttled(gpu)),
        problems=tuple(_problems(gpu)),
    )


def _pci_id(text: str | None) -> str | None:
    """`233510DE` → `10de:2335`: nvidia-smi writes the device before the vendor."""
    found = re.fullmatch(r"(?:0x)?([0-9a-fA-F]{4})([0-9a-fA-F]{4})", text or "")
    return f"{found[2]}:{found[1]}".lower() if found else None


def _clocks(gpu: Element, block: str) -> Clocks:
    names = ("graphics_clock", "sm_clock", "mem_clock", "video_clock")
    return Clocks(*(integer(_text(gpu, f"{block}/{name}")) for name in names))


@lru_cache(maxsize=256)
def _supported(block: str) -> Mapping[int, tuple[int, ...]]:
    """Parsed once for each different list: all GPUs of a model share one."""
    clocks: dict[int, tuple[int, ...]] = {}
    for memory in _MEMORY_BLOCK.findall(block):
        listed = _LISTED_CLOCK.findall(memory)
        clocks.update(
            {
                int(value): tuple(int(clock) for name, clock in listed if name != "value")
                for name, value in listed
                if name == "value"
            }
        )
    return clocks


def _power(gpu: Element) -> Power:
    """From `gpu_power_readings` (530 and later) or `power_readings`, whose `power_limit` was requested."""
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
    old = gpu.findall("compute_processes/process_info")
    for process in [*gpu.findall("processes/process_info"), *old]:
        pid = integer(_text(process, "pid"))
        if pid is not None:
            yield Process(
                pid=pid,
                kind=_text(process, "type") or ("C" if process in old else ""),
                name=_text(process, "process_name") or "",
                used_mib=mebibytes(_text(process, "used_memory")),
            )


def _throttled(gpu: Element) -> Iterator[str]:
    for block in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for reason in gpu.iterfind(f"{block}/*"):
            if switch(reason.text):
                yield re.sub(r"^clocks_(?:event|throttle)_reason_", "", reason.tag)


def _problems(gpu: Element) -> Iterator[str]:
    for element in gpu.iter():
        if element.tag != "process_name" and len(element) == 0 and trouble(element.text):
            yield f"{element.tag}: {(element.text or '').strip()}"
