"""Collectors of links: PCIe ports up to the root, access control, NVLink, and counters read twice."""

import glob
import os
import re
import time

from gpuprov.probe.node.base import collector, link_name, names_in, read_or_none, run_anyway, text_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

DEVICES = "/sys/bus/pci/devices/"
PAUSE_S = 0.12
"""Seconds between the two readings of counters."""
LINK_FIELDS = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
FURTHER_FIELDS = ("vendor", "device", "class", "power_state", "numa_node", "enable")
ACS_CAPABILITY = 0x000D
"""Access Control Services, PCI Express base specification, 7.7.11; the control register is at offset 6."""
ACS_REDIRECTS = 0x2C
"""P2P request redirect, completion redirect and egress control: each redirects peer traffic to the root."""
COUNTERS = re.compile(
    r"(?:symbol_error|link_downed|link_error_recovery|port_rcv_errors|port_xmit_discards"
    r"|excessive_buffer_overrun_errors|out_of_sequence|packet_seq_err|rnr_nak_retry_err"
    r"|rx_icrc_encapsulated|roce_adp_retrans|local_ack_timeout_err)"
)
"""Names of the error counters of RDMA ports."""


@collector(seconds=10)
def pci_links(parameters: "Values") -> "Any":
    """Return for each GPU, NVSwitch and Mellanox network device the rows of itself and of each port above.

    Rows are those of `_link`.
    """
    found = {}
    for address in names_in(DEVICES):
        folder = DEVICES + address + "/"
        vendor, code = text_in(folder + "vendor"), text_in(folder + "class")
        if (vendor == "0x10de" and code.startswith(("0x03", "0x0680"))) or (
            vendor == "0x15b3" and code.startswith(("0x02", "0x0207"))
        ):
            real = os.path.realpath(DEVICES + address)
            chain = re.findall(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", real)
            found[address] = [_link(each) for each in reversed(chain or [address])]
    return found


def _link(address: str) -> "Values":
    """Return one PCI device's link, power, driver, IOMMU type, BARs, and state of its configuration space.

    Links are texts of sysfs. `lost` and `acs` are from `_config`.
    """
    folder = DEVICES + address + "/"
    row = {name: text_in(folder + name) for name in LINK_FIELDS + FURTHER_FIELDS}  # type: Values
    row["address"] = address
    row["driver"] = link_name(folder + "driver")
    group = os.path.realpath(folder + "iommu_group")
    row["iommu_type"] = text_in(group + "/type") if os.path.exists(folder + "iommu_group") else None
    row["bars"], row["unplaced"] = _bars(text_in(folder + "resource"))
    row.update(_config(folder + "config"))
    return row


def _bars(text: str) -> "tuple[list[int], list[int]]":
    """Return sizes of the six base address registers in bytes, and the numbers of those without an address.

    A line has begin, end and flags; without flags there is no such register (Documentation/PCI/sysfs-pci).
    """
    sizes, unplaced = [], []
    for number, line in enumerate(text.splitlines()[:6]):
        words = line.split()
        if len(words) > 2:
            begin, end, flags = (int(word, 16) for word in words[:3])
            sizes.append(end - begin + 1 if end > begin else 0)
            if flags and begin == 0:
                unplaced.append(number)
    return sizes, unplaced


def _config(path: str) -> "Values":
    """Return `lost`, whether the configuration space does not answer, and ACS's state; both None if it cannot
    be read.

    Only root can read beyond byte 64.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.read(4096)
    except OSError:
        return {"lost": None, "acs": None}
    lost = len(data) >= 4 and data[:4] == b"\xff\xff\xff\xff"
    return {"lost": lost, "acs": None if lost or len(data) <= 256 else _acs(data)}


def _acs(data: bytes) -> "bool | None":
    """Return whether ACS redirects peer traffic to the root; None for a device without ACS, or a damaged list
    of capabilities.
    """
    place = 0x100
    for _ in range(96):
        head = int.from_bytes(data[place : place + 4], "little")
        if head in (0, 0xFFFFFFFF):
            return None
        if head & 0xFFFF == ACS_CAPABILITY:
            return bool(int.from_bytes(data[place + 6 : place + 8], "little") & ACS_REDIRECTS)
        place = head >> 20
        if not 0x100 <= place < len(data) - 8:
            return None
    return None


@collector(seconds=20)
def nvlink(parameters: "Values") -> "Any":
    """Return `status` and `errors`: the outputs of `nvidia-smi nvlink -s` and `-e`, also if it failed.

    Both are "" if no NVIDIA driver is loaded.
    """
    if not os.path.exists("/proc/driver/nvidia/version"):
        return {"status": "", "errors": ""}
    return {
        "status": run_anyway("nvidia-smi", "nvlink", "-s", seconds=9)[1],
        "errors": run_anyway("nvidia-smi", "nvlink", "-e", seconds=9)[1],
    }


@collector(seconds=20)
def topo(parameters: "Values") -> "Any":
    """Return as `text` the output of `nvidia-smi topo -m`, also if it failed.

    "" with fewer than two NVIDIA GPUs.
    """
    if len(glob.glob("/proc/driver/nvidia/gpus/*")) < 2:
        return {"text": ""}
    return {"text": run_anyway("nvidia-smi", "topo", "-m", seconds=19)[1]}


@collector(seconds=10)
def counters(parameters: "Values") -> "Any":
    """Return counters of errors and of swapping, read twice: an increase shows an error that occurs now.

    `seconds` is the time between both.
    """
    first = _counters()
    time.sleep(PAUSE_S)
    return {"seconds": PAUSE_S, "first": first, "second": _counters()}


def _counters() -> "dict[str, int]":
    """Return name -> value of the counters of PCIe errors, RDMA ports, swapping and memory errors.

    PCIe and RDMA counters of 0, and those that cannot be read, are left out.
    """
    found = {}
    for path in glob.glob(DEVICES + "*/aer_dev_*"):
        for name, value in re.findall(r"^(\w+) (\d{1,18})$", read_or_none(path, 8192) or "", re.M):
            address, kind = path.split("/")[-2], path.rpartition("aer_dev_")[2]
            if int(value):
                found[f"aer {address} {kind} {name}"] = int(value)
    for folder in glob.glob("/sys/class/infiniband/*/ports/*/*counters"):
        device, port = folder.split("/")[-4], folder.split("/")[-2]
        for name in filter(COUNTERS.fullmatch, names_in(folder)):
            value = text_in(folder + "/" + name)
            if value.isdecimal() and int(value):
                found[f"rdma {device}/{port} {name}"] = int(value)
    for name, value in re.findall(
        r"^(pswpin|pswpout|oom_kill) (\d{1,18})$", read_or_none("/proc/vmstat") or "", re.M
    ):
        found[f"vm {name}"] = int(value)
    for path in glob.glob("/sys/devices/system/edac/mc/mc*/[cu]e_count"):
        value = text_in(path)
        if value.isdecimal():
            found["edac {} {}".format(*path.split("/")[-2:])] = int(value)
    return found
