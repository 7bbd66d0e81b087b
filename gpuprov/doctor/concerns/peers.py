"""Rules for peer transfers of GPUs: IOMMU, ACS, NUMA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprov.doctor.concerns.bus import RESERVED
from gpuprov.doctor.examination import Examination, LogLine
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.doctor.lines import with_kernel_option
from gpuprov.doctor.packaging import platform_of
from gpuprov.untrusted import shell

_STOPPED = re.compile(
    r"(?:nvidia (?P<new>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): )?AMD-Vi: Event logged \[IO_PAGE_FAULT "
    r"(?:device=(?P<old>[0-9a-f:]{5,10}\.[0-7]) )?"
    r"|DMAR: \[DMA (?:Read|Write)[ A-Z_]{0,12}\] Request device \[(?P<intel>[0-9a-f:]{5,10}\.[0-7])\] fault "
)
"""Beginning of the kernel's line about a transfer that AMD's or Intel's IOMMU stopped, and its device."""


@rule("host.iommu", "D90", source="nccl-doc sichek gpud samples-48")
def iommu(seen: Examination) -> Iterator[Fault]:
    """Report transfers of GPUs that the IOMMU stopped; else, on bare metal (x86-64), address translation for
    several GPUs, which slows down or breaks peer transfers.
    """
    stopped = [] if "kernel_log" in seen.missing else _stopped(seen)
    if stopped:
        yield Fault(
            "degraded",
            "the IOMMU stops transfers of a GPU",
            (*(line.quoted(160) for line in stopped[-2:]), f"kernel line: {seen.cmdline[:160]}"),
            "the GPU uses an address that was not translated for it, as one of another GPU or of a NIC: such "
            "transfers fail or hang",
            with_kernel_option("iommu=pt", entries=platform_of(seen).next_kernel == "bls"),
        )
        return
    if seen.virtual or len(seen.pci_gpus) < 2 or seen.arch != "x86_64":
        return
    ours = {gpu.address for gpu in seen.pci_gpus}
    kinds = {chain[0].iommu_type for address, chain in seen.pci_links.items() if address in ours and chain}
    translated = {kind for kind in kinds if kind in ("DMA", "DMA-FQ")}
    if translated:
        yield Fault(
            "risk",
            "the IOMMU translates the GPUs' addresses",
            (
                f"/sys/bus/pci/devices/GPU/iommu_group/type: {listed(sorted(translated))}",
                f"kernel line: {seen.cmdline[:160]}",
            ),
            "transfers between GPUs and to NICs are slower, or hang in NCCL's first collective",
            with_kernel_option("iommu=pt", entries=platform_of(seen).next_kernel == "bls"),
        )


def _stopped(seen: Examination) -> list[LogLine]:
    """Return the kernel's lines about transfers that the IOMMU stopped, of GPUs that are not set aside for
    virtual machines.
    """
    gpus = {gpu.address for gpu in seen.pci_gpus if gpu.driver not in RESERVED}
    found = []
    for line in seen.log_lines(r"IO_PAGE_FAULT", r"\ADMAR: \[DMA "):
        match = _STOPPED.match(line.text)
        device = match and (match["new"] or match["old"] or match["intel"])
        if device and (device if device.count(":") > 1 else f"0000:{device}") in gpus:
            found.append(line)
    return found


@rule("host.acs", "D90", source="nccl-doc sichek gpud")
def acs(seen: Examination) -> Iterator[Fault]:
    """Report ACS that redirects traffic of several GPUs through the processor, on bare metal; not if
    NVSwitches connect the GPUs and there is no Mellanox card.
    """
    if seen.virtual or len(seen.pci_gpus) < 2:
        return
    gpus = {gpu.address for gpu in seen.pci_gpus}
    bridges = {
        port.address
        for address, chain in seen.pci_links.items()
        if address in gpus
        for port in chain[1:]
        if port.acs
    }
    switched = any((gpu.fabric_state or "") == "Completed" for gpu in seen.smi.gpus)
    nics = any(device.vendor == "15b3" for device in seen.pci)
    if bridges and (nics or not switched):
        yield Fault(
            "risk",
            f"ACS redirects peers' traffic at {len(bridges)} PCIe ports",
            tuple(f"{address}: ACSCtl redirects requests" for address in sorted(bridges)[:4]),
            "PCIe traffic between GPUs and NICs goes through the processor: slow, and NCCL may hang",
            (
                shell(
                    "BIOS: ACS off (bare metal); or at each boot: sudo setpci -s {} ECAP_ACS+6.w=0000",
                    min(bridges),
                ),
            ),
        )


@rule("host.numa_balancing", "D102", source="nccl-doc stas-acc")
def numa_balancing(seen: Examination) -> Iterator[Fault]:
    """Report that the kernel moves memory between NUMA nodes while programs run, on machines with GPUs and
    several nodes.
    """
    if (
        seen.sysctls.get("kernel.numa_balancing") in (None, "0")
        or len(seen.cpu.numa_nodes) < 2
        or not seen.has_gpus
    ):
        return
    yield Fault(
        "hint",
        "the kernel moves memory between NUMA nodes by itself",
        (f"kernel.numa_balancing: {seen.sysctls['kernel.numa_balancing']}",),
        "page faults in the middle of training; programs that set their NUMA affinity do not need it",
        (shell("echo kernel.numa_balancing=0 | sudo tee /etc/sysctl.d/90-numa.conf; sudo sysctl --system"),),
        "settings.tuning.numa_balancing: false",
    )


@rule("host.numa_unknown", "D101", source="aznhc")
def numa_unknown(seen: Examination) -> Iterator[Fault]:
    """Report GPUs without a known NUMA node on a machine with several."""
    lost = [gpu.address for gpu in seen.pci_gpus if gpu.numa_node is None]
    if lost and len(seen.cpu.numa_nodes) > 1:
        yield Fault(
            "hint",
            f"{len(lost)} GPUs report no NUMA node, on a machine with {len(seen.cpu.numa_nodes)}",
            (f"/sys/bus/pci/devices/{lost[0]}/numa_node: -1",),
            "firmware or hypervisor hides it; NCCL and launchers cannot place processes",
            (shell("virtual machine: a topology file for NCCL (NCCL_TOPO_FILE)"), shell("gpuprov topo")),
        )
