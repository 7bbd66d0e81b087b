"""Collectors of the hardware: PCI, network, RDMA, processors, memory, disks."""

import glob
import json
import os
import re

from gpuprov.probe.node.base import (
    collector,
    dropped_in,
    lines_in,
    lines_of,
    link_name,
    mounted,
    names_in,
    read,
    redact,
    run,
    text_in,
)
from gpuprov.probe.node.network import default_routes, interface_addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

INTERFACES_AT_MOST = 512
"""Maximum number of network interfaces in an answer."""
GIDS_AT_MOST = 64
"""Maximum number of GIDs of a port in an answer."""
PCI_FIELDS = ("vendor", "device", "class", "subsystem_vendor", "subsystem_device", "numa_node")
# Vendors NVIDIA and Mellanox; classes network (02) and NVMe (0108), pci.ids.
PCI_VENDORS, PCI_CLASSES = ("0x10de", "0x15b3"), ("0x02", "0x0108")


@collector(seconds=10)
def pci(parameters: "Values") -> "Any":
    """Return rows of address, PCI_FIELDS and driver of devices of the relevant vendors or classes."""
    rows = []
    for address in names_in("/sys/bus/pci/devices"):
        folder = "/sys/bus/pci/devices/" + address + "/"
        if text_in(folder + "vendor") in PCI_VENDORS or text_in(folder + "class").startswith(PCI_CLASSES):
            values = [text_in(folder + field) for field in PCI_FIELDS]
            rows.append([address] + values + [link_name(folder + "driver") or ""])
    return rows


@collector(seconds=10)
def nics(parameters: "Values") -> "Any":
    """Return a row for each network interface with its addresses, at most `INTERFACES_AT_MOST`, without lo
    and the veth of containers.

    `default_route` is whether a default route uses it; see `_nic` for the other keys.
    """
    addresses, routed = interface_addresses(), default_routes()
    names = [name for name in names_in("/sys/class/net") if name != "lo" and not name.startswith("veth")]
    return [
        dict(_nic(name), addresses=addresses.get(name, []), default_route=name in routed)
        for name in names[:INTERFACES_AT_MOST]
    ]


def _nic(name: str) -> "Values":
    """Return the row of one interface.

    `kind` is `physical`, `virtual`, `bond`, `vlan` or `bridge`; other values are texts of sysfs, "" or None
    if missing.
    """
    folder = "/sys/class/net/" + name + "/"
    kind = re.search(r"^DEVTYPE=(bond|vlan|bridge)$", text_in(folder + "uevent"), re.M)
    device = os.path.exists(folder + "device")
    # The sysfs folder of a virtio device is below that of its PCI device.
    places = re.findall(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", os.path.realpath(folder + "device"))
    return {
        "name": name,
        "kind": kind.group(1) if kind else "physical" if device else "virtual",
        "state": text_in(folder + "operstate"),
        "speed": text_in(folder + "speed"),
        "mtu": text_in(folder + "mtu"),
        "type": text_in(folder + "type"),
        "driver": link_name(folder + "device/driver"),
        "pci": places[-1] if places else None,
        "numa": text_in(folder + "device/numa_node"),
        "master": link_name(folder + "master"),
        "lower": [entry[6:] for entry in names_in(folder) if entry.startswith("lower_")],
    }


@collector(seconds=10)
def hcas(parameters: "Values") -> "Any":
    """Return a row for each port of an RDMA device, with texts of sysfs, interfaces and PCI address.

    `gids` are those of a RoCE port; empty for InfiniBand.
    """
    rows = []
    for folder in sorted(glob.glob("/sys/class/infiniband/*/ports/*")):
        device = os.path.dirname(os.path.dirname(folder))
        rows.append(
            {
                "name": os.path.basename(device),
                "port": os.path.basename(folder),
                "state": text_in(folder + "/state"),
                "rate": text_in(folder + "/rate"),
                "link_layer": text_in(folder + "/link_layer"),
                "interfaces": names_in(device + "/device/net"),
                "firmware": text_in(device + "/fw_ver"),
                "pci": os.path.basename(os.path.realpath(device + "/device")),
                "gids": _gids(folder) if text_in(folder + "/link_layer") == "Ethernet" else [],
            }
        )
    return rows


def _gids(port: str) -> "list[list[Any]]":
    """Return index, type and address of each GID of a RoCE port that is set, of the first `GIDS_AT_MOST`."""
    found = []  # type: list[list[Any]]
    for index in sorted(map(int, names_in(port + "/gids")))[:GIDS_AT_MOST]:
        address = text_in(f"{port}/gids/{index}")
        if address.strip("0:"):
            found.append([index, text_in(f"{port}/gid_attrs/types/{index}"), address])
    return found


@collector(seconds=10)
def cpu(parameters: "Values") -> "Any":
    """Return model, counts, governor -> number of frequency policies, and NUMA node -> its processors.

    `threads_per_core` is null if the kernel does not list cores. `places` has `PROCESSOR SOCKET CORE` of each
    logical processor, if it is requested.
    """
    text = read("/proc/cpuinfo")
    models = re.findall(r"^model name\s*:\s*(.+)$", text, re.M)
    siblings = re.search(r"^siblings\s*:\s*(\d+)$", text, re.M)
    cores = re.search(r"^cpu cores\s*:\s*(\d+)$", text, re.M)
    governors = [
        text_in(path) for path in glob.glob("/sys/devices/system/cpu/cpufreq/policy*/scaling_governor")
    ]
    nodes = (os.path.basename(path) for path in glob.glob("/sys/devices/system/node/node[0-9]*"))
    return {
        "model": models[0] if models else "",
        "logical": len(re.findall(r"^processor\s*:", text, re.M)),
        "sockets": len(set(re.findall(r"^physical id\s*:\s*(\d+)$", text, re.M))),
        "threads_per_core": int(siblings.group(1)) // int(cores.group(1)) if siblings and cores else None,
        "governors": {governor: governors.count(governor) for governor in set(governors)},
        "numa": {node[4:]: text_in("/sys/devices/system/node/" + node + "/cpulist") for node in nodes},
        "places": _places(text) if parameters["cores"] else [],
    }


def _places(text: str) -> "list[str]":
    """Return rows from /proc/cpuinfo, or from /sys on architectures whose cpuinfo lists no sockets."""
    rows = []
    for block in text.split("\n\n"):
        found = dict(re.findall(r"^(processor|physical id|core id)\s*:\s*(\d+)$", block, re.M))
        if len(found) == 3:
            rows.append(" ".join([found["processor"], found["physical id"], found["core id"]]))
    if rows:
        return rows
    for folder in glob.glob("/sys/devices/system/cpu/cpu[0-9]*/topology"):
        socket, core = text_in(folder + "/physical_package_id"), text_in(folder + "/core_id")
        rows.append(" ".join([folder.split("/")[-2][3:], socket, core]))
    return rows


@collector(seconds=5)
def memory(parameters: "Values") -> "Any":
    """Return the lines of /proc/meminfo that do not change while programs run, and the available memory."""
    kept = re.findall(
        r"(?m)^(?:MemTotal|MemAvailable|SwapTotal|HugePages_Total|Hugepagesize):.*$", read("/proc/meminfo")
    )
    return {"text": "\n".join(kept)}


@collector(seconds=10)
def disks(parameters: "Values") -> "Any":
    """Return block devices as lsblk lists them, without loop devices and memory disks."""
    columns = "NAME,TYPE,SIZE,FSTYPE,MOUNTPOINT,MODEL,ROTA,TRAN"
    answer = run("lsblk", "--json", "--bytes", "--exclude", "1,7", "--output", columns)
    return json.loads(answer)["blockdevices"] if answer.strip() else []


@collector(seconds=10)
def scratch(parameters: "Values") -> "Any":
    """Return file system, source in fstab, mount unit and KiB of read-ahead of each requested mount point.

    Each is null if not mounted, not in fstab, or unknown. `rule` has the KiB of read-ahead that udev sets for
    the file system, and the place of that rule.
    """
    found = {}
    for point in parameters["scratch"]:
        rows = [line.split() for line in lines_in("/etc/fstab")]
        sources = [row[0] for row in rows if len(row) > 2 and row[1] == point and not row[0].startswith("#")]
        source, kind = ([("", None)] + [(row[0], row[2]) for row in mounted() if row[1] == point])[-1]
        ahead = text_in(
            "/sys/class/block/" + os.path.basename(os.path.realpath(source)) + "/bdi/read_ahead_kb"
        )
        found[point] = {
            "filesystem": kind,
            "fstab": sources[-1] if sources else None,
            "unit": _mount_unit(point),
            "read_ahead_kib": int(ahead) if source and ahead.isdecimal() else None,
            "rule": _read_ahead_rule(sources[-1] if sources else ""),
        }
    return found


def _read_ahead_rule(source: str) -> "list[Any]":
    """Return KiB and place of the last rule of udev that sets the read-ahead of a `UUID=…`, or nulls; also
    nulls for another source.
    """
    found = [None, None]  # type: list[Any]
    condition = f'ENV{{ID_FS_UUID}}=="{source[len("UUID=") :]}"'
    for path in dropped_in("udev/rules.d", ".rules") if source.startswith("UUID=") else ():
        for place, line in lines_of(path):
            value = re.search(r'ATTR\{(?:bdi|queue)/read_ahead_kb\}="(\d{1,9})"', line)
            if value and condition in line:
                found = [int(value.group(1)), place]
    return found


def _mount_unit(point: str) -> "str | None":
    """Return the path of a mount unit that overrides fstab's line (systemd.mount(5)), or None."""
    name = point.strip("/").replace("-", "\\x2d").replace("/", "-") + ".mount"
    paths = (f"{root}/systemd/system/{name}" for root in ("/etc", "/run"))
    return next((path for path in paths if os.path.exists(path)), None)


@collector(seconds=5)
def mounts(parameters: "Values") -> "Any":
    """Return the lines of /proc/mounts for devices, network file systems and the root, without secrets."""
    kept = [row for row in mounted() if row[0].startswith("/") or ":" in row[0] or row[1] == "/"]
    return {"text": redact("\n".join(" ".join(row) for row in kept))}
