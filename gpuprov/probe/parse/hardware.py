"""Parsers of network, processors, memory and disks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuprov.untrusted import device_name
from gpuprov.untrusted.lines import lines_of


@dataclass(frozen=True, slots=True)
class Nic:
    """One network interface. `kind`: `physical`, `bond`, `vlan`, `bridge` or `virtual`; `speed` in Mbit/s."""

    name: str
    kind: str
    state: str
    speed: int | None
    mtu: int | None
    driver: str | None
    pci_address: str | None
    numa_node: int | None
    master: str | None
    addresses: tuple[str, ...]
    """With prefix length: `10.0.0.5/24`."""
    infiniband: bool
    default_route: bool = False
    lower: tuple[str, ...] = ()
    """The interfaces below it: the parent of a VLAN, the members of a bond."""


@dataclass(frozen=True, slots=True)
class Hca:
    """One port of an RDMA device; `link_layer` is `InfiniBand` or `Ethernet`."""

    name: str
    port: int
    state: str
    rate: str
    link_layer: str
    interfaces: tuple[str, ...]
    firmware: str
    pci_address: str | None
    gids: tuple[tuple[int, str, str], ...] = ()
    """GIDs of RoCE: index, type (`RoCE v2`) and address of each that is set."""


@dataclass(frozen=True, slots=True)
class Disk:
    """One block device, size in bytes; children of a device follow it with `parent` set."""

    name: str
    type: str
    size: int
    filesystem: str | None
    mountpoints: tuple[str, ...]
    model: str | None
    rotational: bool | None
    transport: str | None
    parent: str | None


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system, from /proc/mounts."""

    source: str
    target: str
    filesystem: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cpu:
    """Processors. `governors` counts logical processors by frequency governor; empty without scaling."""

    model: str
    logical: int
    sockets: int
    threads_per_core: int | None
    governors: Mapping[str, int]
    numa_nodes: Mapping[int, str]
    """Node → its processors as a range list: `0-31,64-95`."""
    places: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Logical processor → its socket and core, as the kernel numbers them; empty if not requested."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in mebibytes; `hugepage_kib` in kibibytes."""

    total_mib: int
    available_mib: int | None
    swap_mib: int
    hugepages: int
    hugepage_kib: int


def parse_nics(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Nic]:
    """Parse rows of /sys/class/net with addresses, from the probe, by interface."""
    return {nic.name: nic for nic in map(_nic, rows)}


def _nic(row: Mapping[str, Any]) -> Nic:
    """Return the interface in one row; a speed of -1 or 0 is None, since it is unknown."""
    speed = _integer(row.get("speed"))
    return Nic(
        name=device_name(row["name"]),
        kind=row["kind"],
        state=row.get("state") or "unknown",
        speed=speed if speed and speed > 0 else None,  # -1 and errors mean: unknown while the link is down
        mtu=_integer(row.get("mtu")),
        driver=row.get("driver"),
        pci_address=row.get("pci"),
        numa_node=_node(row.get("numa")),
        master=row.get("master"),
        addresses=tuple(row.get("addresses") or ()),
        infiniband=str(row.get("type")) == "32",  # ARPHRD_INFINIBAND, linux/if_arp.h
        default_route=bool(row.get("default_route")),
        lower=tuple(row.get("lower") or ()),
    )


def parse_hcas(rows: Iterable[Mapping[str, Any]]) -> tuple[Hca, ...]:
    """Parse ports of /sys/class/infiniband; `4: ACTIVE` becomes `ACTIVE`."""
    return tuple(
        Hca(
            name=device_name(row["name"]),
            port=_integer(row.get("port")) or 0,
            state=str(row.get("state") or "").rpartition(":")[2].strip(),
            rate=row.get("rate") or "",
            link_layer=row.get("link_layer") or "",
            interfaces=tuple(row.get("interfaces") or ()),
            firmware=row.get("firmware") or "",
            pci_address=row.get("pci"),
            gids=tuple((int(index), str(kind), str(gid)) for index, kind, gid in row.get("gids") or ()),
        )
        for row in rows
    )


def parse_disks(devices: Iterable[Mapping[str, Any]], parent: str | None = None) -> Iterator[Disk]:
    """Yield the disks in `blockdevices` of `lsblk --json --bytes`, children after their parent.

    Versions before util-linux 2.33 write every value as text.
    """
    for device in devices:
        mountpoints = device.get("mountpoints") or [device.get("mountpoint")]
        rotational = device.get("rota")
        yield Disk(
            name=device_name(device.get("name")),
            type=str(device.get("type")),
            size=_integer(device.get("size")) or 0,
            filesystem=device.get("fstype"),
            mountpoints=tuple(point for point in mountpoints if point),
            model=(device.get("model") or "").strip() or None,
            rotational=None if rotational is None else rotational in (True, "1", 1),
            transport=device.get("tran"),
            parent=parent,
        )
        yield from parse_disks(device.get("children") or (), parent=device.get("name"))


def parse_mounts(text: str) -> Mapping[str, Mount]:
    """Parse /proc/mounts: mount point → mount; the last mount over a place is the visible one."""
    rows = (line.split(" ") for line in lines_of(text))
    return {
        _unescape(row[1]): Mount(_unescape(row[0]), _unescape(row[1]), row[2], tuple(row[3].split(",")))
        for row in rows
        if len(row) >= 4
    }


def parse_cpu(raw: Mapping[str, Any]) -> Cpu:
    """Parse the processors' model and counts, governors and NUMA nodes."""
    return Cpu(
        model=raw.get("model") or "",
        logical=int(raw.get("logical") or 0),
        sockets=int(raw.get("sockets") or 0),
        threads_per_core=_integer(raw.get("threads_per_core")),
        governors=dict(raw.get("governors") or {}),
        numa_nodes={int(node): cpus for node, cpus in (raw.get("numa") or {}).items()},
        places=_places(raw.get("places") or []),
    )


def _places(rows: Iterable[str]) -> dict[int, tuple[int, int]]:
    """Parse rows `PROCESSOR SOCKET CORE`; other rows are left out."""
    parsed = (re.fullmatch(r"(\d{1,5}) (\d{1,5}) (\d{1,5})", row) for row in rows)
    return {int(row[1]): (int(row[2]), int(row[3])) for row in parsed if row}


def parse_memory(text: str) -> Memory:
    """Parse /proc/meminfo; a missing value is 0, and None for the available memory."""
    values = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d{1,18})\b", text, re.M)}
    available = values.get("MemAvailable")
    return Memory(
        total_mib=values.get("MemTotal", 0) // 1024,
        available_mib=None if available is None else available // 1024,
        swap_mib=values.get("SwapTotal", 0) // 1024,
        hugepages=values.get("HugePages_Total", 0),
        hugepage_kib=values.get("Hugepagesize", 0),
    )


def _integer(value: Any) -> int | None:
    """Return a whole number, also from text; None for anything else."""
    return int(value) if re.fullmatch(r"-?\d{1,18}", str(value).strip()) else None


def _node(value: Any) -> int | None:
    """Return a NUMA node's number; None if unknown: sysfs writes -1 if there is only one."""
    node = _integer(value)
    return node if node is not None and node >= 0 else None


def _unescape(word: str) -> str:
    r"""Return a word of /proc/mounts with octal escapes resolved: `\040` is a blank."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)
