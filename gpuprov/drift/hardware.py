"""A node's hardware by its facts: GPUs, processors, memory, drives, network ports.

Drift compares it with the lock, discovery with profiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gpuprov.model.hardware import NicHardware
from gpuprov.probe.facts import Facts

NVME_CLASS, INFINIBAND_CLASS = "0108", "0207"  # PCI code assignments: NVM controller, InfiniBand controller
FITS = {"rdma": ("infiniband", "roce")}
WORDS = {"ethernet": "Ethernet", "infiniband": "InfiniBand", "roce": "RoCE", "rdma": "RDMA", "efa": "EFA"}
EFA_NAMES = ("efa", "rdmap")


@dataclass(frozen=True)
class Port:
    """A network port; `gbits` is 0 for one that is down, None for an unknown speed."""

    kind: str
    gbits: float | None


def gpu_ids(facts: Facts) -> Counter[str]:
    """Return PCI id of the NVIDIA GPUs on the bus, `10de:2330`, → their number."""
    return Counter(device.id for device in facts.pci_gpus)


def nvswitches(facts: Facts) -> int:
    """Return the number of NVSwitches on the bus."""
    return sum(device.is_nvswitch for device in facts.pci)


def cores(facts: Facts) -> int:
    """Return the number of physical cores; without the number of threads every processor counts as one."""
    return facts.cpu.logical // (facts.cpu.threads_per_core or 1)


def nvme_drives(facts: Facts) -> int:
    """Return the number of NVMe controllers on the bus, also of empty drives."""
    return sum(device.class_code.startswith(NVME_CLASS) for device in facts.pci)


def nvme_tb(facts: Facts) -> float | None:
    """Return the total size of the NVMe disks in 10^12 bytes; None if the kernel shows no NVMe disk."""
    sizes = [disk.size for disk in facts.disks if disk.parent is None and disk.name.startswith("nvme")]
    return sum(sizes) / 1e12 if sizes else None


def ports(facts: Facts) -> list[Port]:
    """Return every network port with its own hardware; an RDMA-capable Ethernet port appears as both. A port
    without a link has the speed 0.

    Ports that the drivers do not report but that are InfiniBand on the bus are included with unknown speed.
    """
    from gpuprov.nccl.inputs import gigabits

    found = []
    seen: set[str | None] = set()
    for hca in facts.hcas:
        seen.add(hca.pci_address)
        layer = {"InfiniBand": "infiniband", "Ethernet": "roce"}.get(hca.link_layer)
        kind = layer or ("efa" if hca.name.startswith(EFA_NAMES) else None)
        if kind:
            up = hca.state.upper() == "ACTIVE" or kind == "efa"
            found.append(Port(kind, (gigabits(hca.rate) or None) if up else 0))
    for nic in facts.nics.values():
        if nic.kind == "physical" and not nic.infiniband:
            result = nic.speed / 1000 if nic.speed else None
            found.append(Port("ethernet", 0 if nic.state == "down" else result))
    # Without the RDMA modules the ports are still on the bus.
    unseen = (d for d in facts.pci if d.class_code.startswith(INFINIBAND_CLASS) and d.address not in seen)
    return [*found, *(Port("infiniband", None) for _ in unseen)]


def fulfilled(wanted: NicHardware, have: Iterable[Port]) -> bool:
    """Return whether enough ports of the wanted kind are fast enough; an unknown speed counts as fast."""
    fast = [port for port in of_kind(wanted, have) if port.gbits is None or port.gbits >= wanted.speed_gbits]
    return len(fast) >= wanted.count


def of_kind(wanted: NicHardware, have: Iterable[Port]) -> list[Port]:
    """Return the ports of a wanted kind: for `rdma` those of InfiniBand and RoCE."""
    return [port for port in have if port.kind in FITS.get(wanted.kind, (wanted.kind,))]


def instead(wanted: NicHardware, have: Iterable[Port]) -> str:
    """Return the ports found in place of the wanted ones: `7 x 400 Gb/s RDMA, 1 x 200 Gb/s RDMA`.

    Of more ports than wanted the fastest count, so that a management port does not replace one of the fabric.
    """
    fastest = sorted(of_kind(wanted, have), key=lambda port: -(port.gbits or 0))[: wanted.count]
    counts = Counter(port.gbits for port in fastest)
    word = WORDS[wanted.kind]
    result = [f"{count} x {_speed(gbits)} {word}" for gbits, count in counts.items()]
    missing = wanted.count - len(fastest)
    return ", ".join([*result, *([f"{missing} missing"] if missing else [])])


def _speed(gbits: float | None) -> str:
    """Return a port's speed in Gb/s as text, `down` for 0, `unknown` for None."""
    return "unknown" if gbits is None else f"{gbits:g} Gb/s" if gbits else "down"
