"""Judgement of an NCCL log: whether the machines' fabric is used, and if not, why.

Rules are named by what they judge (`intra.transport`); each is one function of the log and the expectation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from gpuprov.finding import Finding, Level, limited
from gpuprov.nccl.log import NcclLog

Intra = Literal["p2p", "nvlink"]
Inter = Literal["ib", "roce", "efa", "socket"]

# Interfaces that carry no traffic between machines: loopback, and those of container engines and hypervisors.
_LOCAL_ONLY = re.compile(
    r"lo\d*\Z|docker|virbr|br-|veth|cni|flannel|cali|cilium|lxc|podman|vmnet|vnet|tap|dummy"
)
_RDMA = {"ib", "roce", "efa"}


@dataclass(frozen=True)
class ExpectedPaths:
    """The expected paths of a log; None for no expectation.

    Attributes:
        intra: within a node: `p2p` any direct path, `nvlink` only over NVLink.
        inter: between nodes: the fabric's kind.
    """

    intra: Intra | None = None
    inter: Inter | None = None


def judge_log(log: NcclLog, expected: ExpectedPaths | None = None) -> list[Finding]:
    """Judge a log; return findings about the job, paths within nodes, paths between nodes, then settings. A
    log without NCCL's lines and without a bandwidth gives only `log.empty`. Number and length of the findings
    are limited.
    """
    wanted = expected or ExpectedPaths()
    if not log.messages and log.results.peak is None:
        return [
            Finding(
                "bad", "log.empty", "no line of NCCL in the log: set NCCL_DEBUG=INFO and run the job again"
            )
        ]
    found = (rule(log, wanted) for rule in _RULES)
    return limited(finding for findings in found for finding in findings)


# --- the job as a whole ---------------------------------------------------------------------------------


def _versions(log: NcclLog, _: ExpectedPaths) -> list[Finding]:
    """Judge the versions in a log as `mixed_versions`."""
    return mixed_versions(version for version, _cuda in log.versions)


def mixed_versions(versions: Iterable[str]) -> list[Finding]:
    """Judge whether all ranks have one NCCL version; no finding if so."""
    several = sorted(set(versions))
    if len(several) < 2:
        return []
    text = f"the ranks run different NCCL versions ({', '.join(several)}): they can hang or crash"
    return [Finding("bad", "version.mixed", text)]


def _ready(log: NcclLog, _: ExpectedPaths) -> list[Finding]:
    """Judge whether all ranks in the log finished `Init`, for each communicator; no finding if so."""
    waiting = {
        (comm.nranks, tuple(sorted(set(comm.hosts) - comm.complete))): len(comm.complete)
        for comm in log.communicators
        if set(comm.hosts) - comm.complete
    }
    return [_not_ready(nranks, ranks, complete) for (nranks, ranks), complete in waiting.items()]


def _not_ready(nranks: int, ranks: tuple[int, ...], complete: int) -> Finding:
    """Return the finding about the ranks of a communicator that did not finish `Init`: bad if `complete`
    others did.
    """
    names = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    if complete:
        text = f"ranks {names} of {nranks} never finished `Init`, {complete} others did: look at those first"
        return Finding("bad", "init.incomplete", text)
    text = f"no rank of {nranks} finished `Init`: the log ends too early, or the job hangs there"
    return Finding("warn", "init.incomplete", text)


def _partial(log: NcclLog, _: ExpectedPaths) -> list[Finding]:
    """Warn if the log has only some ranks of the largest communicator."""
    comm = log.communicators.largest
    if comm is None or len(comm.hosts) >= comm.nranks:
        return []
    text = f"the log holds {len(comm.hosts)} of {comm.nranks} ranks: the others' paths are not judged"
    return [Finding("warn", "log.partial", text)]


# --- within a node --------------------------------------------------------------------------------------


def _intra(log: NcclLog, wanted: ExpectedPaths) -> list[Finding]:
    """Judge the paths within nodes: ok if all are direct; bad over the network or against an expectation,
    else a warning.
    """
    intra = log.transports["intra"]
    expected = {"nvlink": "NVLink P2P", "p2p": "P2P", None: "P2P"}[wanted.intra]
    if not intra:
        return _no_intra(log, wanted, expected)
    slow = {transport: count for transport, count in intra.items() if not _direct(transport)}
    if not slow:
        nvls = ", with NVLink SHARP (NVLS)" if log.nvls else ""
        return [Finding("ok", "intra.transport", f"within a node: {_counted(intra)}{nvls}")]
    through_network = any(transport.startswith("NET") for transport in slow)
    level: Level = "bad" if wanted.intra or through_network else "warn"
    direct = {name: count for name, count in intra.items() if name not in slow}
    part = f"beside {_counted(direct)} also " if direct else ""
    reasons = "; ".join(_why_not_p2p(log, slow))
    text = f"{expected} expected within the node, found {part}{_counted(slow)}: {reasons}"
    return [Finding(level, "intra.transport", text)]


def _no_intra(log: NcclLog, wanted: ExpectedPaths, expected: str) -> list[Finding]:
    """Judge a log without paths within nodes: if some are expected, ok with NVLS, else a warning."""
    if wanted.intra is None:
        return []
    if log.nvls:
        return [Finding("ok", "intra.transport", "within a node: NVLink SHARP (NVLS)")]
    why = "one rank a node" if log.ranks == log.nodes else "the log has no `via` line, so no path is known"
    return [Finding("warn", "intra.transport", f"{expected} expected within the node; {why}")]


def _why_not_p2p(log: NcclLog, slow: dict[str, int]) -> list[str]:
    """Return the likely reasons, those with evidence in the log first."""
    reasons = [
        f"{name}={value} is set"
        for name, harmful in (("NCCL_P2P_DISABLE", "1"), ("NCCL_P2P_LEVEL", ""), ("NCCL_SHM_DISABLE", "1"))
        for value in log.environment[name]
        if (not harmful or value == harmful) and (name != "NCCL_SHM_DISABLE" or "SHM" not in slow)
    ]
    if log.p2p_refused:
        reasons.append(
            "the driver could not enable P2P between some GPUs (IOMMU or PCIe ACS on, or no support)"
        )
    if len(log.hosts) > (log.nodes or 1):
        reasons.append("each rank runs in a separate container: use --ipc=host, or one container per node")
    return reasons or [
        "the GPUs may have no P2P with each other (see `gpuprov topo`), PCIe ACS or the IOMMU may be on, "
        "or each rank may see its own GPU only (containers, CUDA_VISIBLE_DEVICES)"
    ]


# --- between nodes --------------------------------------------------------------------------------------


def _inter(log: NcclLog, wanted: ExpectedPaths) -> list[Finding]:
    """Judge the paths between nodes: bad for another fabric than expected, or sockets although RDMA ports
    exist; else ok.

    A warning if an expected fabric has no path in the log; nothing without paths and expectation.
    """
    kinds = _fabrics(log)
    if not kinds:
        if wanted.inter is None:
            return []
        text = f"{wanted.inter} expected between nodes, but this log has no path between nodes"
        return [Finding("warn", "inter.transport", text)]
    names = _counted(log.transports["inter"]) or f"{log.network}"
    if wanted.inter and kinds != {wanted.inter}:
        reasons = "; ".join(_why_not_rdma(log)) if wanted.inter in _RDMA else "see NCCL_NET, NCCL_IB_DISABLE"
        text = f"{wanted.inter} expected between nodes, found {names}: {reasons}"
        return [Finding("bad", "inter.transport", text)]
    if "socket" in kinds and log.hcas and not wanted.inter:
        ports = ", ".join(str(hca) for hca in sorted(log.hcas))
        text = f"plain sockets between nodes although {ports} exist: {'; '.join(_why_not_rdma(log))}"
        return [Finding("bad", "inter.transport", text)]
    return [Finding("ok", "inter.transport", f"between nodes: {names}")]


def _fabrics(log: NcclLog) -> set[str]:
    """Return the kinds of fabric used between nodes: ib, roce, efa, socket, or a plugin's own name. Without
    such a path, the network that NCCL names for several nodes.
    """
    inter = log.transports["inter"]
    used = {_fabric(transport.partition("/")[2] or transport, log) for transport in inter}
    if not used and log.network and (log.nodes or 1) > 1:
        used = {_fabric(log.network, log)}
    return used


def _fabric(name: str, log: NcclLog) -> str:
    """Return the kind of a network by NCCL's name of it; RoCE if all ports in the log are RoCE."""
    lowered = name.lower()
    if lowered.startswith("ib"):
        links = {hca.link.lower() for hca in log.hcas}
        return "roce" if links == {"roce"} else "ib"
    if "libfabric" in lowered or lowered == "ofi":
        return (log.provider or "efa").lower()
    return lowered


def _why_not_rdma(log: NcclLog) -> list[str]:
    """Return the likely reasons, the variables that are set first."""
    reasons = [
        f"{name}={value} is set"
        for name, harmless in (("NCCL_IB_DISABLE", "0"), ("NCCL_NET", None), ("NCCL_NET_PLUGIN", None))
        for value in log.environment[name]
        if value != harmless
    ]
    if not log.hcas and not log.provider:
        reasons.append("NCCL found no RDMA device (driver, rdma-core, /dev/infiniband in the container)")
    elif not reasons:
        reasons.append("the port may be down on one of the nodes, or NCCL_IB_HCA name others there")
    return reasons


def _gdrdma(log: NcclLog, _: ExpectedPaths) -> list[Finding]:
    """Judge the use of GPUDirect RDMA between nodes over RDMA: a warning if only some or no paths use it."""
    if not _fabrics(log) & _RDMA or not log.transports["inter"]:
        return []
    if 0 < log.gdrdma_lines < log.network_lines:
        text = f"GPUDirect RDMA on {log.gdrdma_lines} of {log.network_lines} network paths only: "
        return [Finding("warn", "inter.gdrdma", f"{text}some GPUs are far from their NIC (`gpuprov topo`)")]
    if log.gdrdma:
        return [Finding("ok", "inter.gdrdma", "GPUDirect RDMA is used between nodes")]
    reasons = [f"NCCL_NET_GDR_LEVEL={value} is set" for value in log.environment["NCCL_NET_GDR_LEVEL"]]
    if log.gdrdma_refused:
        reasons.append("NCCL reports it disabled for the HCA: nvidia_peermem is not loaded, and no DMA-BUF")
    text = (
        "; ".join(reasons)
        or "nvidia_peermem may not be loaded, or GPU and NIC be too far apart (`gpuprov topo`)"
    )
    return [
        Finding("warn", "inter.gdrdma", f"RDMA between nodes goes through host memory, not GPUDirect: {text}")
    ]


def _interfaces(log: NcclLog, _: ExpectedPaths) -> list[Finding]:
    """Report interfaces that reach no other machine: bad for several nodes, else a warning."""
    used = sorted({interface.name for interface in log.interfaces if _LOCAL_ONLY.match(interface.name)})
    if not used:
        return []
    several = (log.nodes or 1) > 1
    end = "other machines cannot be reached over it" if several else "more nodes could not be reached over it"
    text = f"NCCL uses {', '.join(used)}: {end}; set NCCL_SOCKET_IFNAME to the fabric's NIC (`=eth0`)"
    return [Finding("bad" if several else "warn", "interface.local", text)]


# --- settings, complaints, results ----------------------------------------------------------------------


def _environment(log: NcclLog, _: ExpectedPaths) -> list[Finding]:
    """Warn of variables that switch off a transport, and of variables that differ between ranks."""
    off = [
        f"{name}={value}"
        for name, harmful in _SWITCHES_OFF.items()
        for value in log.environment[name]
        if value == harmful
    ]
    split = [
        f"{name} ({', '.join(sorted(values))})" for name, values in log.environment.items() if len(values) > 1
    ]
    return [
        *([Finding("warn", "environment.off", f"switched off by hand: {', '.join(off)}")] if off else []),
        *(
            [Finding("warn", "environment.split", f"not the same on all ranks: {', '.join(split)}")]
            if split
            else []
        ),
    ]


_SWITCHES_OFF = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"}


def _complaints(log: NcclLog, _: ExpectedPaths) -> list[Finding]:
    """Return up to ten errors with their causes, and one warning that counts the other messages."""
    found = [
        Finding("bad", "nccl.error", f"{entry['text']} ({entry['count']} times): {entry['cause']}")
        for entry in log.complaints.errors[:10]
    ]
    warnings = log.complaints.warnings
    if warnings:
        text = f"{len(warnings)} other warnings of NCCL, the first: {warnings[0]['text']}"
        found.append(Finding("warn", "nccl.warning", text))
    return found


def _results(log: NcclLog, _: ExpectedPaths) -> list[Finding]:
    """Judge nccl-tests' results: bad for wrong values, else ok with the best bandwidth, none without one."""
    if log.results.wrong:
        text = f"{log.results.wrong} wrong values in nccl-tests: data is corrupted in transit"
        return [Finding("bad", "results.wrong", text)]
    if log.results.peak is None:
        return []
    return [Finding("ok", "results.bandwidth", f"bus bandwidth up to {log.results.peak:.1f} GB/s")]


_RULES: tuple[Callable[[NcclLog, ExpectedPaths], list[Finding]], ...] = (
    _versions,
    _ready,
    _partial,
    _intra,
    _inter,
    _gdrdma,
    _interfaces,
    _environment,
    _complaints,
    _results,
)


def _direct(transport: str) -> bool:
    """Return whether a transport is P2P without a detour, or NVLS."""
    return transport.startswith(("P2P", "NVLS")) and transport != "P2P/indirect"


def _counted(transports: dict[str, int]) -> str:
    """Return the transports with their numbers of connections as text."""
    return ", ".join(f"{name} ({count} connections)" for name, count in transports.items())
