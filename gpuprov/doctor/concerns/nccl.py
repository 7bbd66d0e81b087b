"""Rules for the path between GPUs and the network: GPUDirect RDMA, NCCL's variables, NUMA."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import lru_cache

from gpuprov.doctor.examination import CPU_LIST, Examination
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.doctor.lines import without_variable
from gpuprov.untrusted import ShellLine, shell
from gpuprov.untrusted.parsing import whole_number

DMA_BUF_KERNEL = (5, 12)
"""First Linux version with which GPUDirect RDMA needs no peer-memory module, with the open kernel modules."""
SWITCHES_OFF = {
    "NCCL_P2P_DISABLE": "GPUs do not access each other directly",
    "NCCL_SHM_DISABLE": "processes of a node communicate over the network",
    "NCCL_IB_DISABLE": "InfiniBand and RoCE are not used",
}


@rule("network.gpudirect", "D91", source="imbue nccl-778", after=("network.peermem_log",))
def no_gpudirect(seen: Examination) -> Iterator[Fault]:
    """Report active RDMA cards and GPUs (no GeForce) that can exchange data only through host memory: without
    a peer-memory module, and without DMA-BUF (an open driver, and Linux from `DMA_BUF_KERNEL` on). Degraded
    if there are several cards for traffic between nodes, else a hint.
    """
    active = [hca for hca in seen.hcas if hca.state == "ACTIVE" and not hca.name.startswith(("rxe", "siw"))]
    loaded = seen.loaded_driver
    if not active or not loaded or not seen.gpus or any("GeForce" in (gpu.name or "") for gpu in seen.gpus):
        return
    module = any(name in seen.loaded_modules for name in ("nvidia_peermem", "nv_peer_mem"))
    result = re.match(r"(\d+)\.(\d+)", seen.kernel)
    dma_buf = loaded.open and result and (int(result[1]), int(result[2])) >= DMA_BUF_KERNEL
    if not module and not dma_buf:
        # A single Ethernet card with RDMA is usually a server's uplink, not a fabric for jobs.
        fabric = any(hca.link_layer == "InfiniBand" for hca in active) or len(active) * 2 >= len(seen.gpus)
        yield Fault(
            "degraded" if fabric and len(active) > 1 else "hint",
            "GPUDirect RDMA is off: no peer-memory module, and no DMA-BUF",
            (
                "/proc/modules: neither nvidia_peermem nor nv_peer_mem",
                f"module: {'open' if loaded.open else 'proprietary'}, kernel {seen.kernel}",
                f"RDMA: {listed([hca.name for hca in active])}",
            ),
            "traffic between nodes goes through host memory: about half the bandwidth",
            (
                shell("sudo modprobe nvidia_peermem"),
                shell("echo nvidia_peermem | sudo tee /etc/modules-load.d/nvidia-peermem.conf"),
            ),
            "stack.module: open (DMA-BUF)",
        )


@rule("network.peermem_log", "D92", "D93", source="perftest-269 gpud")
def peer_memory_log(seen: Examination) -> Iterator[Fault]:
    """Report errors of the peer-memory modules in the log; those of their start only while neither is
    loaded.
    """
    patterns = (
        r"nvidia_peermem.*(?:Invalid argument|disagrees|Unknown symbol|version magic)",
        r"nv_peer_mem: (?:disagrees|Unknown symbol|version magic)",
    )
    loaded = any(name in seen.loaded_modules for name in ("nvidia_peermem", "nv_peer_mem"))
    lines = seen.log_lines(*(() if loaded else patterns), r"nv_get_p2p_free_callback")
    for line in lines[-1:]:
        stale = "free_callback" in line.text
        yield Fault(
            "risk" if stale else "degraded",
            "a peer-memory registration remains after its program ended"
            if stale
            else "the kernel refuses the peer-memory module",
            (line.dated(160),),
            "a fault of older drivers" if stale else _refusal(line.text),
            (shell("restart the job; newer driver"),)
            if stale
            else (
                shell("reinstall the driver's module after the RDMA stack: sudo dkms autoinstall"),
                shell("or rely on DMA-BUF: open modules and Linux 5.12 or later"),
            ),
        )


def _refusal(text: str) -> str:
    """Return why the kernel refused a peer-memory module, by its message."""
    if "nvidia_p2p" in text:
        return "it was built against another version of NVIDIA's module, or the latter is not loaded"
    if "version magic" in text:
        return "it was built for another kernel"
    if "disagrees" in text:
        return "it was built against another RDMA stack: DOCA-OFED was installed or upgraded later"
    return (
        "the RDMA stack was installed after the driver, or has no peer-memory interface, as the kernel's own"
    )


@rule("network.nccl_variables", "U16", source="nccl-doc")
def nccl_variables(seen: Examination) -> Iterator[Fault]:
    """Report variables of logins, /etc/nccl.conf and running programs that restrict NCCL."""
    devices, interfaces = sorted(hca.name for hca in seen.hcas), sorted(seen.nics)
    for place, values in _settings(seen).items():
        for name, value in values.items():
            text = _bound(seen, name, value, devices, interfaces)
            if text:
                yield Fault(
                    "degraded" if text[0] else "risk",
                    f"{name}={value} {text[1]}",
                    (f"{place}: {name}={value}",),
                    "set by a user, for a test or for another machine",
                    (
                        _unset(place, name),
                        shell("gpuprov nccl derive HOST prints what this machine needs"),
                    ),
                    "settings.nccl",
                )


def _unset(place: str, name: str) -> ShellLine:
    """Return the command that removes a variable from a file; for a process, to start the job without it."""
    return without_variable(place, name) if place.startswith("/") else shell("start the job without it")


def _settings(seen: Examination) -> dict[str, Mapping[str, str]]:
    """Return place → NCCL's variables there: /etc/nccl.conf, files of the environment, processes on GPUs."""
    found: dict[str, Mapping[str, str]] = {}
    if seen.nccl.settings:
        found["/etc/nccl.conf"] = seen.nccl.settings
    for path, values in seen.environment.items():
        found[path] = {name: value for name, value in values.items() if name.startswith("NCCL_")}
    for program in seen.programs if "programs" not in seen.missing else ():
        own = {name: value for name, value in program.variables.items() if name.startswith("NCCL_")}
        if own:
            found[f"process {program.pid} ({program.name})"] = own
    return found


def _bound(
    seen: Examination, name: str, value: str, devices: list[str], interfaces: list[str]
) -> tuple[bool, str] | None:
    """Return whether a value certainly slows down NCCL, and how; None for a harmless value.

    Args:
        devices, interfaces: sorted names of RDMA devices and of network interfaces.
    """
    value = value.strip()
    if name in SWITCHES_OFF and value == "1":
        matters = len(seen.pci_gpus) > 1 if name != "NCCL_IB_DISABLE" else bool(seen.hcas)
        return (True, f"switches off a path: {SWITCHES_OFF[name]}") if matters else None
    if name == "NCCL_IB_HCA" and devices and not value.startswith("^"):
        wanted = [each.strip("=").partition(":")[0] for each in value.split(",") if each]
        lost = [each for each in wanted if each and not _any_begins(devices, each)]
        return (
            (True, f"names devices that do not exist ({listed(lost)}); existing: {listed(devices)}")
            if lost
            else None
        )
    if name == "NCCL_SOCKET_IFNAME" and not value.startswith("^"):
        names = [each.lstrip("=") for each in value.split(",") if each]
        lost = [each for each in names if not _any_begins(interfaces, each)]
        return (
            (True, f"names interfaces that do not exist: {listed(lost)}")
            if lost and len(lost) == len(names)
            else None
        )
    return None


def _any_begins(names: list[str], start: str) -> bool:
    """Return whether any of the sorted names begins with a text."""
    at = bisect_left(names, start)
    return at < len(names) and names[at].startswith(start)


@rule("network.numa", "D100", source="oci-hc")
def far_programs(seen: Examination) -> Iterator[Fault]:
    """Report programs bound to processors of other NUMA nodes than their GPU's, on a machine with several."""
    nodes = seen.cpu.numa_nodes
    if len(nodes) < 2:
        return
    by_minor = {gpu.minor: gpu.pci_address for gpu in seen.gpus}
    numa = {gpu.address: gpu.numa_node for gpu in seen.pci_gpus}
    for program in seen.programs:
        bound = _cpus(program.cpus)
        for device in program.gpus:
            minor = whole_number(device.removeprefix("nvidia"))
            node = None if minor is None else numa.get(by_minor.get(minor) or "")
            if node is None or node not in nodes or not bound or bound & _cpus(nodes[node][:CPU_LIST]):
                continue
            yield Fault(
                "degraded",
                f"process {program.pid} ({program.name}) uses {device} on NUMA node {node} and may run "
                f"on none of its "
                f"processors ({program.cpus[:40]})",
                (
                    f"/proc/{program.pid}/status: Cpus_allowed_list {program.cpus[:60]}",
                    f"node {node}: {nodes[node][:60]}",
                ),
                "each copy to the GPU crosses the processors' interconnect",
                (
                    shell("start it with: numactl --cpunodebind={} --membind={} …", node, node),
                    shell("gpuprov launch writes such lines"),
                ),
            )


@lru_cache(maxsize=256)
def _cpus(text: str) -> int:
    """Parse a list of processors such as `0-3,8` → a number whose bits are the processors; it takes 12 kB at
    most.
    """
    found = 0
    for first, last in re.findall(r"(?:^|,)([0-9]{1,5})(?:-([0-9]{1,5}))?(?=,|\Z)", text):
        low, high = int(first), int(last or first)
        if low <= high:
            found |= (1 << high + 1) - (1 << low)
    return found
