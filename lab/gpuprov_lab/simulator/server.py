"""Simulation of a server's other hardware: processors, memory, network ports, in /proc and /sys.

The files are written below the node's root; a unit of the node binds them over the real machine's early in
its boot. An interface has no link here: one that needs addresses is added to the running node,
`Node.add_interface`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuprov_lab.simulator.node.places import HOME

FOLDER = Path(HOME) / "server"
OF_KERNEL = 0.985
"""Approximate share of the installed memory that a kernel reports."""
PLACES = {"meminfo": "/proc/meminfo", "cpuinfo": "/proc/cpuinfo", "class": "/sys/class"}
UNIT = """\
[Unit]
Description=Simulated server: processors, memory and network ports
DefaultDependencies=no
ConditionVirtualization=container
RequiresMountsFor=/var/lib/gpuprov-sim
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
"""
IB_LANES = {400: "4X NDR", 200: "4X HDR", 100: "4X EDR"}


def write_server(root: Path, machine: dict[str, Any]) -> None:
    """Write the hardware in the machine's description, and the unit that mounts it; all else remains the real
    machine's.
    """
    folder = root / FOLDER
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    if "memory_gib" in machine:
        write_memory(root, machine["memory_gib"])
        (folder / "cpuinfo").write_text(_cpuinfo(machine["cpus"], machine["threads_per_core"]))
    if "nics" in machine:
        _copy_classes(folder / "class")
        for nic in machine["nics"]:
            _write_port(root, nic)
    _write_unit(root, [name for name in PLACES if (folder / name).exists()])


def write_memory(root: Path, gib: int) -> None:
    """Write a node's /proc/meminfo, with less than `gib` GiB in total, as the kernel keeps some."""
    kib = int(gib * 1024 * 1024 * OF_KERNEL)
    (root / FOLDER / "meminfo").write_text(
        f"MemTotal:       {kib} kB\nMemFree:        {kib // 2} kB\nMemAvailable:   {kib // 2} kB\n"
        "Buffers:               0 kB\nCached:                0 kB\nSwapTotal:             0 kB\n"
        "SwapFree:              0 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n"
    )


def without_gpu(address: str) -> Callable[[Path], None]:
    """Return a step for `Lab.up(prepare=...)` that removes the GPU at a PCI address from the bus."""

    def step(root: Path) -> None:
        shutil.rmtree(root / HOME / "pci" / address)

    return step


def with_port_speed(name: str, gbits: int) -> Callable[[Path], None]:
    """Return a step for `Lab.up(prepare=...)` that changes the speed of an interface or
    RDMA device in Gb/s.
    """

    def step(root: Path) -> None:
        classes = root / FOLDER / "class"
        if (classes / "net" / name).exists():
            (classes / "net" / name / "speed").write_text(f"{gbits * 1000}\n")
        for port in classes.glob(f"infiniband/{name}/ports/*"):
            (port / "rate").write_text(_rate(gbits))

    return step


def with_memory(gib: int) -> Callable[[Path], None]:
    """Return a step for `Lab.up(prepare=...)` that sets the memory in GiB, such as for missing DIMMs."""
    return lambda root: write_memory(root, gib)


def _write_unit(root: Path, names: list[str]) -> None:
    """Enable the unit that mounts these of `PLACES` at boot; without names, remove it."""
    units = root / "etc/systemd/system"
    unit, wanted = units / "gpuprov-sim-server.service", units / "sysinit.target.wants"
    wanted.mkdir(parents=True, exist_ok=True)
    (wanted / unit.name).unlink(missing_ok=True)
    if not names:
        unit.unlink(missing_ok=True)
        return
    binds = [f"ExecStart=/bin/mount --bind /{FOLDER}/{name} {PLACES[name]}\n" for name in names]
    unit.write_text(UNIT + "".join(binds))
    (wanted / unit.name).symlink_to(f"../{unit.name}")


def _cpuinfo(nodes: dict[str, str], threads: int) -> str:
    """Return the text of /proc/cpuinfo.

    Args:
        nodes: NUMA node → its CPUs, such as `0-47,96-143`; each is one socket.
        threads: threads of each core.
    """
    counts = [sum(_length(part) for part in cpus.split(",")) for cpus in nodes.values()]
    blocks: list[str] = []
    for socket, count in enumerate(counts):
        cores = count // threads
        for number in range(count):
            blocks.append(
                f"processor\t: {len(blocks)}\nvendor_id\t: GenuineIntel\nmodel name\t: Simulated Processor\n"
                f"physical id\t: {socket}\nsiblings\t: {count}\ncore id\t\t: {number % cores}\n"
                f"cpu cores\t: {cores}\napicid\t\t: {len(blocks)}\n"
                "flags\t\t: fpu sse2 lm constant_tsc rep_good nopl\n"
            )
    return "\n".join(blocks)


def _length(part: str) -> int:
    """Return the number of CPUs in `0-47` or `3`."""
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1


def _copy_classes(folder: Path) -> None:
    """Copy the classes of this machine, except for those written here; their links lead into /sys."""
    for kind in Path("/sys/class").iterdir():
        (folder / kind.name).mkdir(parents=True)
        if kind.name not in ("net", "infiniband"):
            for entry in kind.iterdir():
                if entry.is_symlink():
                    (folder / kind.name / entry.name).symlink_to(entry.readlink())


def _write_port(root: Path, nic: dict[str, Any]) -> None:
    """Write an interface, an RDMA device, or both of one PCI device."""
    classes = root / FOLDER / "class"
    device = f"/sys/bus/pci/devices/{nic['pci']}"
    pci = root / HOME / "pci" / nic["pci"]
    driver = pci / "driver"
    driver.unlink(missing_ok=True)
    driver.symlink_to(f"../../drivers/{nic['driver']}")
    if "name" in nic:
        (pci / "net" / nic["name"]).mkdir(parents=True, exist_ok=True)
        values = {"operstate": "up", "speed": nic["gbits"] * 1000, "mtu": nic.get("mtu", 1500), "type": 1}
        _write(classes / "net" / nic["name"], {**values, "uevent": f"INTERFACE={nic['name']}"})
        (classes / "net" / nic["name"] / "device").symlink_to(device)
    if "hca" in nic:
        folder = classes / "infiniband" / nic["hca"]
        _write(folder, {"fw_ver": "28.39.1002"})
        values = {"state": "4: ACTIVE", "link_layer": nic["link_layer"]}
        _write(folder / "ports/1", {**values, "rate": _rate(nic["gbits"]).strip()})
        (folder / "device").symlink_to(device)


def _rate(gbits: int) -> str:
    """Return the content of an InfiniBand port's file `rate`, from Gb/s."""
    return f"{gbits} Gb/sec ({IB_LANES.get(gbits, '4X')})\n"


def _write(folder: Path, files: dict[str, Any]) -> None:
    """Write files of these names and values into a folder, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
