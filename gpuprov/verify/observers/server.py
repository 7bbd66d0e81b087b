"""`host.server`: a node's hardware other than its GPUs."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cached_property

from gpuprov.untrusted import lines_of
from gpuprov.verify.observers.base import Observed

CLASSES = "grep -sH . /sys/bus/pci/devices/*/class /sys/bus/pci/devices/*/vendor"
RDMA = (
    "grep -sH . /sys/class/infiniband/*/ports/*/rate /sys/class/infiniband/*/ports/*/state"
    " /sys/class/infiniband/*/ports/*/link_layer"
)
ETHERNET = (
    "for d in /sys/class/net/*/device; do n=${d%/device};"
    ' echo "$(cat $n/type) $(cat $n/operstate) $(cat $n/speed 2>/dev/null)"; done'
)
MOUNTS = "grep -av '^[^ ]* [^ ]* fuse[^ ]* [^ ]*,user_id=[1-9]' /proc/mounts"
"""All mounts but those by users (FUSE), whose names could be longer than an answer may be."""
ETHER, NVIDIA = "1", "0x10de"  # linux/if_arp.h, pci.ids
NVME, BRIDGE = "0x0108", "0x0680"  # PCI code assignments


class Server(Observed):
    """Observer of a node's hardware.

    >>> host.server.cores
    96
    """

    @cached_property
    def _cpuinfo(self) -> str:
        """The content of /proc/cpuinfo; raises as `ask`."""
        return self.ask("cat /proc/cpuinfo")

    @property
    def cores(self) -> int:
        """Number of physical cores, from the processors' sockets.

        Of logical processors if sockets are not listed.
        """
        return parse_cores(self._cpuinfo)

    @property
    def memory_mib(self) -> int:
        """Memory that the kernel manages (MemTotal), in MiB; less than installed; raises as `ask`."""
        return int(self.ask("awk '/^MemTotal:/ {print int($2 / 1024)}' /proc/meminfo"))

    @cached_property
    def _devices(self) -> dict[str, dict[str, str]]:
        """PCI devices: folder → `class` and `vendor`.

        Raises:
            NodeFailed: there is no PCI device.
        """
        return _by_place(self.ask(CLASSES))

    @property
    def nvme_drives(self) -> int:
        """Number of NVMe controllers on the PCI bus; raises as `_devices`."""
        return sum(device["class"].startswith(NVME) for device in self._devices.values())

    @property
    def nvme_tb(self) -> float | None:
        """Size of all NVMe disks together in 10^12 bytes; None if the kernel shows no NVMe disk."""
        sizes = self.run("cat /sys/block/nvme*/size").stdout.split()
        return sum(int(sectors) * 512 for sectors in sizes) / 1e12 if sizes else None

    @property
    def nvswitches(self) -> int:
        """Number of NVSwitches on the PCI bus: bridges of NVIDIA; raises as `_devices`."""
        return sum(
            device["class"].startswith(BRIDGE) and device.get("vendor") == NVIDIA
            for device in self._devices.values()
        )

    @cached_property
    def ports(self) -> dict[str, list[float | None]]:
        """Kind of port (`infiniband`, `roce`, `efa`, `ethernet`) → Gb/s of each; 0 for a port that is down.

        None is an unknown speed. A kind without ports is missing. Only interfaces with a device count as
        Ethernet; those of RoCE ports are included.
        """
        found: defaultdict[str, list[float | None]] = defaultdict(list)
        for place, port in _by_place(self.run(RDMA).stdout).items():
            kind = {"InfiniBand": "infiniband", "Ethernet": "roce"}.get(port.get("link_layer", ""), "")
            efa = re.search(r"/(?:efa|rdmap)", place)
            if kind or efa:
                rate = re.match(r"[\d.]+", port.get("rate", ""))
                up = efa or "ACTIVE" in port.get("state", "")
                found[kind or "efa"].append((float(rate[0]) if rate else None) if up else 0)
        for arp, state, *speed in map(str.split, self.run(ETHERNET).stdout.splitlines()):
            if arp == ETHER:
                result = float(speed[0]) / 1000 if speed and float(speed[0]) > 0 else None
                found["ethernet"].append(0 if state == "down" else result)
        return dict(found)

    @property
    def mounted(self) -> dict[str, str]:
        """Mount point → type of the file system that is visible there, without mounts by users; raises as
        `ask`.

        testinfra's `host.mount_point` also ends lines and words at other characters than the kernel.
        """
        rows = (line.split(" ") for line in lines_of(self.ask(MOUNTS)))
        return {row[1]: row[2] for row in rows if len(row) > 2}

    def __repr__(self) -> str:
        return "<server>"


def parse_cores(text: str) -> int:
    """Parse /proc/cpuinfo: the sum of the sockets' cores; without sockets the number of processors."""
    sockets: dict[str, int] = {}
    socket, processors = None, 0
    for line in lines_of(text):
        name, _, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if name == "processor":
            processors += 1
        elif name == "physical id":
            socket = socket or value
        elif name == "cpu cores" and socket and value.isdecimal():
            sockets[socket], socket = int(value), None
    return sum(sockets.values()) or processors


_FIELD = re.compile(r"(.+)/([a-z_]+):(.*)")


def _by_place(text: str) -> dict[str, dict[str, str]]:
    """Parse `FOLDER/FIELD:VALUE` lines: folder → field → value; other lines are ignored."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for line in lines_of(text):
        if row := _FIELD.match(line):
            found[row[1]][row[2]] = row[3].strip()
    return dict(found)
