"""The nearest profile of a node, and the differences as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuprov.catalog import Catalog
from gpuprov.catalog.guests import is_virtual
from gpuprov.drift import hardware
from gpuprov.finding import shortened
from gpuprov.locking.hardware import locked_hardware
from gpuprov.model.lock import Hardware
from gpuprov.model.profile import Profiles
from gpuprov.probe.facts import Facts, Missing

TEXTS = 64
"""Maximum number of differences of a node, and of its unknown values."""


@dataclass(frozen=True)
class Kind:
    """A profile and the hardware it states."""

    profile: str
    hardware: Hardware


@dataclass(frozen=True)
class Match:
    """The nearest profile of a node; None if no profile has its GPUs.

    It is kept for all nodes: only the first `TEXTS` differences and unknown values, shortened.

    Attributes:
        differences: hardware that is less than in the profile, or of another kind: `7 of 8 GPUs`.
        unknown: hardware that cannot be compared, and why.
    """

    profile: str | None
    differences: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Limit the number and the length of texts."""
        for name in ("differences", "unknown"):
            limited = tuple(shortened(text) for text in getattr(self, name)[:TEXTS])
            object.__setattr__(self, name, limited)


def kinds(catalog: Catalog, folders: Iterable[Path] = ()) -> list[Kind]:
    """Return every profile that states model and number of GPUs: the site's, then the shipped ones.

    Args:
        folders: the site's folders of profiles; the first that has a name counts.

    Raises:
        InvalidInput: a profile is invalid, or the catalog does not have its GPU.
    """
    profiles = Profiles(list(folders))
    stated = {name: profiles.load(name).profile.hardware for name in profiles.paths}
    return [
        Kind(name, locked_hardware(catalog, name, hardware))
        for name, hardware in stated.items()
        if hardware.gpu.model and hardware.gpu.count is not None
    ]


def match(facts: Facts, among: Iterable[Kind]) -> Match:
    """Return the nearest of some kinds, with the differences; no profile, with the reason as difference, if
    no kind has the node's GPUs or they are virtual.

    Only kinds with a GPU model of the node are compared. The number of GPUs has the most weight, then other
    hardware, whether less or more than stated. Of equally near kinds the first counts.

    Raises:
        Missing: the facts do not contain the PCI bus.
    """
    found = hardware.gpu_ids(facts)
    if not found:
        return Match(None, ("no NVIDIA GPU on the PCI bus",))
    if virtual := _virtual(facts):
        return Match(
            None, (f"virtual GPUs, with the guest driver of their hypervisor: {', '.join(virtual)}",)
        )
    possible = [kind for kind in among if any(gpu in kind.hardware.gpu_pci_ids for gpu in found)]
    if not possible:
        seen = ", ".join(f"{count} x {gpu}" for gpu, count in found.items())
        return Match(None, (f"no profile has these GPUs: {seen}",))
    nearest = min(possible, key=lambda kind: _distance(facts, kind.hardware))
    unknown: list[str] = []
    differences = tuple(_differences(facts, nearest.hardware, unknown))
    return Match(nearest.profile, differences, tuple(unknown))


def _virtual(facts: Facts) -> list[str]:
    """Return the names of a guest's virtual GPUs; [] if the driver names none, or does not answer."""
    try:
        names = [gpu.name for gpu in facts.smi.gpus]
    except Missing:
        return []
    return sorted({name for name in names if name and is_virtual(name)})


def _distance(facts: Facts, wanted: Hardware) -> float:
    """Return the distance of a node from a kind: 0 for the same hardware; missing facts add nothing.

    A difference of all GPUs counts 10, and so does each GPU of another model; each other value at most 1.
    """
    found = hardware.gpu_ids(facts)
    count = sum(number for gpu, number in found.items() if gpu in wanted.gpu_pci_ids)
    others = sum(found.values()) - count
    far = 10.0 * (abs(count - wanted.gpu_count) / max(wanted.gpu_count, 1) + others)
    for least, read in _numbers(wanted):
        try:
            seen = read(facts)
        except Missing:
            continue
        if least and seen is not None:
            far += min(abs(math.log2(max(seen, 0.01) / least)), 3.0) / 3
    with suppress(Missing):
        far += sum(not hardware.fulfilled(nic, hardware.ports(facts)) for nic in wanted.nics)
    return far


def _numbers(wanted: Hardware) -> Iterator[tuple[float | None, Callable[[Facts], float | None]]]:
    """Yield pairs of a stated number (None if not stated) and the function that reads it from facts."""
    drives = wanted.nvme
    yield wanted.cpu_cores, hardware.cores
    yield wanted.memory_mib, lambda facts: facts.memory.total_mib
    yield (drives.count if drives else None), hardware.nvme_drives
    yield (drives.total_tb if drives else None), hardware.nvme_tb


def _differences(facts: Facts, wanted: Hardware, unknown: list[str]) -> Iterator[str]:
    """Yield what a node has less than its kind; append facts that are missing to `unknown`."""
    for _, read in READERS:
        try:
            yield from read(facts, wanted)
        except Missing as missing:
            unknown.append(str(missing))


def lacking(facts: Facts, wanted: Hardware) -> list[str]:
    """Return the keys of a profile's `hardware` in which a node has less, or other hardware.

    Keys without the necessary facts are left out.
    """
    found = []
    for part, read in READERS:
        with suppress(Missing):
            found += [part] if list(read(facts, wanted)) else []
    return list(dict.fromkeys(found))


def _gpus(facts: Facts, wanted: Hardware) -> Iterator[str]:
    """Yield a text if the number of GPUs of the kind's models differs, and one for each other model."""
    found = hardware.gpu_ids(facts)
    count = sum(number for gpu, number in found.items() if gpu in wanted.gpu_pci_ids)
    if count != wanted.gpu_count:
        yield f"{count} of {wanted.gpu_count} GPUs ({wanted.gpu_model})"
    for gpu, number in found.items():
        if gpu not in wanted.gpu_pci_ids:
            yield f"{number} GPUs of another model: {gpu}"


def _switches(facts: Facts, wanted: Hardware) -> Iterator[str]:
    """Yield a text if there are fewer NVSwitches than stated."""
    seen = hardware.nvswitches(facts)
    if wanted.nvswitches and seen < wanted.nvswitches:
        yield f"{seen} of {wanted.nvswitches} NVSwitches"


def _cores(facts: Facts, wanted: Hardware) -> Iterator[str]:
    """Yield a text if there are fewer physical cores than stated."""
    if wanted.cpu_cores and (seen := hardware.cores(facts)) < wanted.cpu_cores:
        yield f"{seen} cores instead of {wanted.cpu_cores}"


def _memory(facts: Facts, wanted: Hardware) -> Iterator[str]:
    """Yield a text if there is less memory than stated."""
    seen = facts.memory.total_mib
    if wanted.memory_mib and seen < wanted.memory_mib:
        yield f"{seen / 1024:.0f} GiB memory instead of at least {wanted.memory_mib / 1024:.0f}"


def _drives(facts: Facts, wanted: Hardware) -> Iterator[str]:
    """Yield texts for fewer NVMe drives, and for less total capacity (TB), than stated."""
    count = wanted.nvme.count if wanted.nvme else None
    total = wanted.nvme.total_tb if wanted.nvme else None
    if count and (seen := hardware.nvme_drives(facts)) < count:
        yield f"{seen} of {count} NVMe drives"
    size = hardware.nvme_tb(facts) if total else None
    if total and size is not None and size < total:
        yield f"{size:.1f} TB of NVMe instead of {total:g}"


def _ports(facts: Facts, wanted: Hardware) -> Iterator[str]:
    """Yield a text for each stated kind of network port without enough ports of its speed."""
    have = hardware.ports(facts)
    for nic in wanted.nics:
        if not hardware.fulfilled(nic, have):
            yield f"{hardware.instead(nic, have)} instead of {nic}"


READERS: tuple[tuple[str, Callable[[Facts, Hardware], Iterator[str]]], ...] = (
    ("gpu", _gpus),
    ("gpu", _switches),
    ("cpu_cores", _cores),
    ("memory_gib", _memory),
    ("nvme", _drives),
    ("nics", _ports),
)
"""Key of a profile's `hardware` → function that yields the differences as text."""
