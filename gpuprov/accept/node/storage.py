"""Read rates of local NVMe drives, and the PCIe links of network ports."""

import mmap
import os
import random
import re
import threading
import time

from gpuprov.probe.node.base import Failed, names_in, text_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

BLOCK = 1024 * 1024
READERS = 16
"""Concurrent reads: drives reach their sequential rate with 8 to 32 MiB in flight."""
RUN = 64
"""Consecutive blocks that a reader reads before it moves to another place."""
DRIVES_AT_MOST = 32


def measure(name: str, arguments: "Any") -> "Any":
    """Carry out a step in a worker: `list` returns drives and ports, others read a drive; raises as `rate`.

    Args:
        arguments: the drive's name and seconds.
    """
    if name == "list":
        return {"drives": drives(), "ports": ports()}
    device, seconds = arguments
    return rate("/dev/" + device, seconds)


def drives(root: str = "/sys") -> "list[Values]":
    """Return a row for each NVMe namespace with a size: PCIe link, name and bytes.

    At most `DRIVES_AT_MOST`.
    """
    found = []  # type: list[Values]
    for name in names_in(root + "/block"):
        folder = root + "/block/" + name
        size = int(text_in(folder + "/size") or 0) * 512
        if re.fullmatch(r"nvme\d+n\d+", name) and size:
            found.append(dict(link(os.path.realpath(folder)), name=name, bytes=size))
    return found[:DRIVES_AT_MOST]


def ports(root: str = "/sys") -> "list[Values]":
    """Return a row with link, name and Gb/s for each active RDMA port and each other network interface.

    Interfaces without a device or a known speed, and those of the RDMA ports' devices, are left out.
    """
    found = []  # type: list[Values]
    for port in rdma_ports(root):
        result = re.match(r"(\d+(?:\.\d+)?) Gb/sec", port["rate"])
        if result and port["active"]:
            device = port["port"].partition("/")[0]
            row = link(os.path.realpath(root + "/class/infiniband/" + device + "/device"))
            found.append(dict(row, name=port["port"], gbits=float(result.group(1))))
    behind = {row["pci"] for row in found}
    for name in names_in(root + "/class/net"):
        folder = root + "/class/net/" + name
        speed = text_in(folder + "/speed")
        if speed.isdecimal() and int(speed) and os.path.exists(folder + "/device"):
            row = link(os.path.realpath(folder + "/device"))
            if row["pci"] not in behind:
                found.append(dict(row, name=name, gbits=int(speed) / 1000.0))
    return found


def rdma_ports(root: str = "/sys") -> "list[Values]":
    """Return a row for each RDMA port: `mlx5_0/1`, whether active, InfiniBand or Ethernet, rate as text."""
    found = []  # type: list[Values]
    for device in names_in(root + "/class/infiniband"):
        ports_of = root + "/class/infiniband/" + device + "/ports/"
        for port in names_in(ports_of):
            state, layer, rate = (
                text_in(ports_of + port + "/" + name) for name in ("state", "link_layer", "rate")
            )
            row = {"port": device + "/" + port, "active": "ACTIVE" in state, "layer": layer}
            found.append(dict(row, rate=rate))
    return found


def link(path: str) -> "Values":
    """Return `pci` (address), `generation` and `width` of the current link of the nearest PCI device at or
    above a sysfs path; None for what is unknown.
    """
    while len(path) > 1:
        address = os.path.basename(path)
        if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", address):
            # "16.0 GT/s PCIe": 2.5, 5, 8, 16, 32 GT/s are generations 1 to 5.
            speed = re.match(r"(\d+(?:\.\d+)?) GT/s", text_in(path + "/current_link_speed"))
            width = text_in(path + "/current_link_width")
            steps = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
            return {
                "pci": address,
                "generation": steps.get(float(speed.group(1))) if speed else None,
                "width": int(width) if width.isdecimal() and 0 < int(width) <= 32 else None,
            }
        path = os.path.dirname(path)
    return {"pci": None, "generation": None, "width": None}


def rate(path: str, seconds: float) -> "Values":
    """Read a drive without the page cache; return GB/s as `value`, bytes and seconds.

    `READERS` threads read runs of consecutive blocks at random places. Nothing is written.

    Raises:
        Failed: it cannot be opened or read, or is smaller than a block.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        size = os.lseek(descriptor, 0, os.SEEK_END)
        os.close(descriptor)
    except OSError as error:
        raise Failed("{}: {}".format(path, error.strerror)) from None
    if size < BLOCK:
        raise Failed("{}: {} bytes are too few to be read".format(path, size))
    done, errors = [0] * READERS, []  # type: list[int], list[str]
    begun = time.monotonic()
    readers = [
        threading.Thread(target=_read, args=(path, size, begun + seconds, number, done, errors))
        for number in range(READERS)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    if errors:
        raise Failed("{}: {}".format(path, errors[0]))
    lasted = time.monotonic() - begun
    return {"value": round(sum(done) / lasted / 1e9, 3), "bytes": sum(done), "seconds": round(lasted, 3)}


def _read(path: str, size: int, until: float, number: int, done: "list[int]", errors: "list[str]") -> None:
    """Read in one thread; add bytes to `done[number]`, or a message to `errors`.

    Args:
        until: end, of `time.monotonic`.
    """
    block = mmap.mmap(-1, BLOCK)  # aligned, as O_DIRECT requires
    blocks = size // BLOCK
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            while time.monotonic() < until:
                first = random.randrange(max(1, blocks - RUN + 1))
                os.lseek(descriptor, first * BLOCK, os.SEEK_SET)
                for _ in range(min(RUN, blocks)):
                    done[number] += os.readv(descriptor, [block])
                    if time.monotonic() >= until:
                        break
        finally:
            os.close(descriptor)
    except OSError as error:
        errors.append(error.strerror or str(error))
