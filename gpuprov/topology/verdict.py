"""Findings about a topology for training and inference."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from gpuprov.finding import Finding
from gpuprov.topology.matrix import SCHEMA, Link, Topology, nvlinks

# From near to far, as the legend of `nvidia-smi topo -m` orders them; SOC is the name of SYS before 384.
_DISTANCE = {"PSB": 1, "PIX": 2, "PXB": 3, "PHB": 4, "NODE": 5, "SYS": 6, "SOC": 6}
_UNKNOWN = 7
_SOCKET = 6
_WORDS = {
    "PSB": "one PCIe switch on the board",
    "PIX": "at most one PCIe bridge",
    "PXB": "PCIe bridges, not the CPU",
    "PHB": "the CPU's PCIe host bridge",
    "NODE": "the CPU, between host bridges of one NUMA node",
    "SYS": "the interconnect between sockets",
    "SOC": "the interconnect between sockets",
}


def distance(kind: str) -> int:
    """Return the distance of a path: 0 for NVLink, 1 (same board) to 6 (other socket),
    7 for an unknown kind.
    """
    return 0 if nvlinks(kind) else _DISTANCE.get(kind, _UNKNOWN)


def nearest_nics(topology: Topology) -> dict[str, list[Link]]:
    """Return GPU → links to its nearest NICs, all that are equally near; empty lists if the node has none."""
    nearest: dict[str, list[Link]] = {}
    for gpu in topology.gpus:
        links = [topology.link(gpu, nic.name) for nic in topology.nics]
        least = min((distance(link.kind) for link in links), default=_UNKNOWN)
        nearest[gpu] = [link for link in links if distance(link.kind) == least]
    return nearest


def judge_topology(topology: Topology, *, expect_nvlink: bool = False) -> list[Finding]:
    """Return the findings about a topology.

    Args:
        topology: the node's matrix.
        expect_nvlink: the board has NVLink between all GPUs (SXM, NVL), so a pair without it is a fault.
    """
    return [
        _pairs(topology, expect_nvlink),
        *_over_sockets(topology),
        *_unknown_words(topology),
        *_nics(topology),
        *_cpus(topology),
    ]


def as_document(topology: Topology, *, expect_nvlink: bool = False) -> dict[str, Any]:
    """Return the document of `-o json`, schema gpuprov.topo/1."""
    return {
        "schema": SCHEMA,
        "gpus": list(topology.gpus),
        "nics": [asdict(nic) for nic in topology.nics],
        "links": [asdict(link) for link in topology.links],
        "matrix": topology.matrix,
        "affinity": {gpu: asdict(near) for gpu, near in topology.affinity.items()},
        "nearest_nics": {gpu: [link.b for link in links] for gpu, links in nearest_nics(topology).items()},
        "verdict": [finding.as_dict() for finding in judge_topology(topology, expect_nvlink=expect_nvlink)],
    }


def _pairs(topology: Topology, expect_nvlink: bool) -> Finding:
    """Return the finding about NVLink: ok if all pairs have it or none has, a warning if only some have; bad
    for any pair without it if it is expected.
    """
    pairs = topology.gpu_pairs
    if not pairs:
        return Finding("ok", "gpu.pairs", "one GPU: there are no pairs")
    joined = [link for link in pairs if link.nvlinks]
    apart = [link for link in pairs if not link.nvlinks]
    if not apart:
        counts = sorted({link.nvlinks or 0 for link in joined})
        each = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        amount = f"all {len(pairs)} GPU pairs are" if len(pairs) > 1 else "the one GPU pair is"
        return Finding("ok", "gpu.pairs", f"{amount} joined by NVLink, {each} links a pair")
    how = ", ".join(f"{kind} {count}" for kind, count in Counter(link.kind for link in apart).most_common())
    if not joined:
        text = f"no GPU pair has NVLink; {len(pairs)} over PCIe ({how})"
        return Finding("bad" if expect_nvlink else "ok", "gpu.pairs", text)
    text = f"{len(joined)} of {len(pairs)} GPU pairs have NVLink; without it: {_folded_pairs(apart)} ({how})"
    return Finding("bad" if expect_nvlink else "warn", "gpu.pairs", text)


def _over_sockets(topology: Topology) -> list[Finding]:
    """Return a warning of pairs of GPUs that are connected over sockets, [] without such pairs."""
    far = [link for link in topology.gpu_pairs if distance(link.kind) == _SOCKET]
    if not far:
        return []
    text = (
        f"{len(far)} of {len(topology.gpu_pairs)} GPU pairs reach each other over the interconnect "
        f"between sockets: {_folded_pairs(far)}; keep a job's GPUs on one socket if it does not need all"
    )
    return [Finding("warn", "gpu.socket", text)]


def _unknown_words(topology: Topology) -> list[Finding]:
    """Return a warning of paths of an unknown kind, [] without such paths."""
    odd = [link for link in topology.links if distance(link.kind) == _UNKNOWN]
    if not odd:
        return []
    words = ", ".join(sorted({link.kind for link in odd}))
    return [
        Finding(
            "warn", "path.unknown", f"{len(odd)} paths are given as {words}: the driver does not know them"
        )
    ]


def _nics(topology: Topology) -> list[Finding]:
    """Return a finding for each set of nearest NICs with the GPUs that share it; one `ok` without NICs."""
    if not topology.nics:
        return [Finding("ok", "nic.nearest", "the matrix names no RDMA NIC")]
    devices = {nic.name: nic.device for nic in topology.nics}
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for gpu, links in nearest_nics(topology).items():
        groups[", ".join(devices[link.b] for link in links), links[0].kind].append(gpu)
    return [_nic_finding(names, kind, gpus) for (names, kind), gpus in groups.items()]


def _nic_finding(names: str, kind: str, gpus: list[str]) -> Finding:
    """Return the finding about GPUs and their nearest NICs: ok for a path through PCIe bridges only, else a
    warning.
    """
    who = fold(gpus)
    reach = "reaches its" if len(gpus) == 1 else "reach their"
    text = f"{who} {reach} nearest NIC ({names}) through {_WORDS.get(kind, 'an unknown path')} ({kind})"
    if distance(kind) < _DISTANCE["PHB"]:
        return Finding("ok", "nic.nearest", text)
    return Finding("warn", "nic.nearest", f"{text}: GPUDirect RDMA is slow or off on such a path")


def _cpus(topology: Topology) -> list[Finding]:
    """Return the nearest CPUs, one `ok` finding for GPUs that share them; a warning if none are known for
    any.
    """
    groups: dict[tuple[str, int | str | None], list[str]] = defaultdict(list)
    for gpu in topology.gpus:
        near = topology.affinity.get(gpu)
        if near and near.cpus:
            groups[near.cpus, near.numa].append(gpu)
    if not groups:
        return [Finding("warn", "cpu.nearest", "no CPU affinity is given, as in many virtual machines")]
    return [
        Finding("ok", "cpu.nearest", f"{fold(gpus)}: nearest CPUs {cpus}{_numa_words(numa)}")
        for (cpus, numa), gpus in groups.items()
    ]


def _numa_words(numa: int | str | None) -> str:
    """Return ` (NUMA node 0)`, or an empty string for None."""
    return "" if numa is None else f" (NUMA node {numa})"


def _folded_pairs(links: Iterable[Link]) -> str:
    """Return pairs by their first GPU: `GPU0 with GPU[4-7], GPU1 with GPU[4-7]`, equal ones together."""
    others: dict[str, list[str]] = defaultdict(list)
    for link in links:
        others[link.a].append(link.b)
    alike: dict[str, list[str]] = defaultdict(list)
    for gpu, peers in others.items():
        alike[fold(peers)].append(gpu)
    return ", ".join(f"{fold(gpus)} with {peers}" for peers, gpus in alike.items())


def fold(gpus: list[str]) -> str:
    """Return `GPU[0-2,5]` for GPU0, GPU1, GPU2, GPU5; a single GPU keeps its name."""
    if len(gpus) == 1:
        return gpus[0]
    numbers = sorted(int(gpu.removeprefix("GPU")) for gpu in gpus)
    runs = [[numbers[0]]]
    for before, number in pairwise(numbers):
        if number == before + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "GPU[" + ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs) + "]"
