"""Slurm's gres.conf, and the node lines of slurm.conf; nodes with the same hardware share a line.

The manual pages gres.conf(5) and slurm.conf(5) describe the keys. `slurm_site` has the other files.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from gpuprov.errors import NodeFailed
from gpuprov.inventory.exports.node import Node, numbers, ranges, short_model
from gpuprov.model.nodeset import expand, fold
from gpuprov.roles.health import LIBRARY, SLURM

RESERVE = 0.02
"""Share of a node's memory that RealMemory leaves out. A kernel that reserves more after an update reports
less, and slurmctld drains a node that reports less than RealMemory."""
CLUSTER = {
    "GresTypes": "gpu",
    "SelectType": "select/cons_tres",
    "ProctrackType": "proctrack/cgroup",
    "TaskPlugin": "task/cgroup,task/affinity",
}
"""Keys of the whole cluster without which Slurm does not allocate GPUs, or lets a job open all of a node."""


def core_indexes(places: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Return logical processor → index of its core in gres.conf.

    Slurm counts cores socket by socket, as hwloc orders them: sockets, and the cores of each, by their first
    logical processor. Linux may number processors in another order, such as alternating between sockets.

    Args:
        places: logical processor → its socket and core.
    """
    first: dict[int, int] = {}
    cores: dict[tuple[int, int], int] = {}
    for cpu, place in sorted(places.items()):
        first.setdefault(place[0], cpu)
        cores.setdefault(place, cpu)
    order = sorted(cores, key=lambda place: (first[place[0]], cores[place]))
    index = {place: number for number, place in enumerate(order)}
    return {cpu: index[place] for cpu, place in places.items()}


def slurm_cores(cpus: str, cores: Mapping[int, int]) -> str:
    """Return Slurm's core indexes, `0-15,32`, for a list of logical processors; "" if one is unknown.

    Args:
        cores: logical processor → index of its core (`core_indexes`).

    Raises:
        NodeFailed: not a list of processors.
    """
    near = numbers(cpus)
    return ranges(cores[cpu] for cpu in near) if cores.keys() >= set(near) else ""


def gres_conf(nodes: Iterable[Node], *, nvml: bool = False) -> str:
    """Return gres.conf for all nodes with GPUs: device files, type, and the nearest cores if known.

    A node with unknown devices has no line: it must not be the end of the export of all others.

    Args:
        nvml: let slurmd find files and cores by its plugin for NVML, on nodes that have it.
    """
    listed = [node for node in nodes if node.gpus and not (nvml and node.nvml)]
    own = "AutoDetect=off " if nvml else ""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in listed:
        groups[tuple(_devices(node))].append(node.name)
    lines = [
        f"NodeName={fold(names)} {own}{device}".rstrip() + "\n"
        for devices, names in groups.items()
        for device in devices or ([""] if nvml else [])
    ]
    return "".join(["AutoDetect=nvml\n"] * nvml + lines)


def shortcoming(node: Node, *, nvml: bool = False) -> NodeFailed | None:
    """Return why a node's lines lack its GPUs, or list files in spite of `nvml`; None if they are whole."""
    if node.has_unknown_devices:
        return NodeFailed(
            "exported as down and without GPUs: the device files of its MIG instances are not known",
            expected="--live, and a node with the instances of its lock",
            do=f"gpuprov apply -l {node.name}, then export with --live",
        )
    if nvml and node.gpus and not node.nvml:
        return NodeFailed(
            "exported with its device files: it has no gpu_nvml.so of Slurm, or did not answer",
            expected="the plugin for --nvml: Debian's slurm-wlm-nvml-plugin, or a build with NVML",
        )
    return None


def _devices(node: Node) -> list[str]:
    """Return the lines of gres.conf, without node name: whole GPUs with the same cores, then MIG instances.

    Empty if the devices are not known.
    """
    if node.has_unknown_devices:
        return []
    cores = node.gpu_cores if len(node.gpu_cores) == node.gpus else ("",) * node.gpus
    minors = node.gpu_minors if len(node.gpu_minors) == node.gpus else tuple(range(node.gpus))
    whole = sorted((minors[gpu], cores[gpu]) for gpu in _whole(node))
    lines = []
    for near, found in groupby(whole, key=lambda each: each[1]):
        files = ranges(minor for minor, _ in found)
        device = f"/dev/nvidia[{files}]" if not files.isdecimal() else f"/dev/nvidia{files}"
        lines.append(f"Name=gpu Type={short_model(node.model)} File={device}{_bound(near)}")
    for each in node.slices:
        files = ",".join(each.files)
        kind = _slice_type(node, each.profile)
        lines.append(f"Name=gpu Type={kind} MultipleFiles={files}{_bound(cores[each.gpu])}")
    return lines


def _bound(cores: str) -> str:
    """Return the key for the nearest cores, "" if they are not known."""
    return f" Cores={cores}" if cores else ""


def _whole(node: Node) -> list[int]:
    """Return the indexes of the GPUs that are not partitioned."""
    return [gpu for gpu in range(node.gpus) if gpu not in (node.partitioned or ())]


def _slice_type(node: Node, profile: str) -> str:
    """Return the GRES type of a MIG instance: `a100-sxm4-40gb_3g.20gb`."""
    return f"{short_model(node.model)}_{re.sub(r'[^a-z0-9._-]+', '_', profile.lower())}"


def health_keys(nodes: Sequence[Node]) -> dict[str, str]:
    """Return the keys of slurm.conf for the health check; none unless all nodes have it.

    They are the cluster's: slurmd of a node without the program would log an error at every interval.
    """
    if not nodes or not all(node.health_s for node in nodes):
        return {}
    return {
        "HealthCheckProgram": f"{LIBRARY}/{SLURM[0]}",
        "HealthCheckInterval": str(min(node.health_s for node in nodes)),
    }


def slurm_conf(nodes: Sequence[Node], *, topology: str | None = None) -> str:
    """Return the keys of slurm.conf that GPUs and health checks need, and its `NodeName` lines.

    Args:
        topology: the topology plugin for topology.conf, `tree` or `block`; None without that file.
    """
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        groups[_hardware(node)].append(node)
    keys = CLUSTER | health_keys(nodes) | ({"TopologyPlugin": f"topology/{topology}"} if topology else {})
    lines = [f"{names} {hardware}\n" for hardware, alike in groups.items() for names in _names(alike)]
    return "".join([*(f"{key}={value}\n" for key, value in keys.items()), *lines])


def real_memory(memory_mib: int) -> int:
    """Return RealMemory in MiB for a node's memory in MiB."""
    return int(memory_mib * (1 - RESERVE))


def features(node: Node) -> list[str]:
    """Return a node's features for `--constraint`: `h200`, `driver-580`, `driver-580.95.05`, `cuda-13.0`."""
    driver, toolkits = node.labels.get("driver"), node.labels.get("cuda", "")
    found = [short_model(node.model)] if node.gpus else []
    found += [f"driver-{driver.partition('.')[0]}", f"driver-{driver}"] if driver else []
    return found + [f"cuda-{toolkit}" for toolkit in toolkits.split()]


def _hardware(node: Node) -> str:
    """Return a node's counts, GPUs and state as keys of slurm.conf, without counts that are 0 (unknown)."""
    counts = {
        "CPUs": node.cpus,
        "Sockets": node.sockets,
        "CoresPerSocket": node.cores_per_socket,
        "ThreadsPerCore": node.threads_per_core,
        "RealMemory": real_memory(node.memory_mib),
    }
    stated = [f"{key}={value}" for key, value in counts.items() if value]
    gpus = Counter(_types(node))
    gres = ",".join(f"gpu:{kind}:{count}" for kind, count in gpus.items())
    stated += [f"Gres={gres}"] if gres else []
    stated += [f"Feature={','.join(features(node))}"] if features(node) else []
    return " ".join([*stated, f"State={'DOWN' if node.has_unknown_devices else 'UNKNOWN'}"])


def _types(node: Node) -> list[str]:
    """Return the GRES type of each device: whole GPUs, then MIG instances; empty if they are not known."""
    if node.has_unknown_devices:
        return []
    instances = [_slice_type(node, each.profile) for each in node.slices]
    return [short_model(node.model) for _ in _whole(node)] + instances


def _names(nodes: Sequence[Node]) -> list[str]:
    """Return `NodeName=…` of nodes with the same hardware, with `NodeAddr=…` if an address is not the name.

    One item, or one per node if names and addresses do not fold and expand in the same order.
    """
    address = {node.name: node.address for node in nodes}
    names = fold(address)
    if all(name == where for name, where in address.items()):
        return [f"NodeName={names}"]
    in_order = [address[name] for name in expand(names)]
    addresses = fold(in_order)
    if expand(addresses) == in_order:
        return [f"NodeName={names} NodeAddr={addresses}"]
    return [f"NodeName={name} NodeAddr={where}" for name, where in address.items()]
