"""Slurm's gres.conf, and the node lines of slurm.conf; nodes with the same hardware share a line.

The manual pages gres.conf(5) and slurm.conf(5) describe the keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

from gpuprov.inventory.exports.node import Node, numbers, ranges, short_model
from gpuprov.model.nodeset import expand, fold


def slurm_cores(cpus: str, sockets: int, cores_per_socket: int) -> str:
    """Return Slurm's core indexes, `0-15,32`, for a list of logical CPUs.

    Slurm counts cores, not threads. Linux on x86 servers numbers the first thread of every core before any
    second thread, so the logical CPUs below the number of cores are the cores.
    """
    return ranges(cpu for cpu in numbers(cpus) if cpu < sockets * cores_per_socket)


def gres_conf(nodes: Iterable[Node]) -> str:
    """Return gres.conf for all nodes with GPUs: device files, type, and the nearest cores if known."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in nodes:
        if node.gpus:
            groups[tuple(_devices(node))].append(node.name)
    return "".join(
        f"NodeName={fold(names)} {device}\n" for devices, names in groups.items() for device in devices
    )


def _devices(node: Node) -> list[str]:
    """Return a line of gres.conf, without node name, for each run of consecutive GPUs with the same cores."""
    cores = node.gpu_cores if len(node.gpu_cores) == node.gpus else ("",) * node.gpus
    lines = []
    for near, indexes in groupby(range(node.gpus), key=lambda index: cores[index]):
        files = ranges(indexes)
        device = f"/dev/nvidia[{files}]" if "-" in files else f"/dev/nvidia{files}"
        bound = f" Cores={near}" if near else ""
        lines.append(f"Name=gpu Type={short_model(node.model)} File={device}{bound}")
    return lines


def slurm_conf(nodes: Iterable[Node]) -> str:
    """Return `GresTypes` and the `NodeName` lines of slurm.conf."""
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        groups[_hardware(node)].append(node)
    lines = [f"{names} {hardware}\n" for hardware, alike in groups.items() for names in _names(alike)]
    return "".join(["GresTypes=gpu\n", *lines])


def _hardware(node: Node) -> str:
    """Return a node's counts, GPUs and state as keys of slurm.conf, without counts that are 0 (unknown)."""
    counts = {
        "CPUs": node.cpus,
        "Sockets": node.sockets,
        "CoresPerSocket": node.cores_per_socket,
        "ThreadsPerCore": node.threads_per_core,
        "RealMemory": node.memory_mib,
    }
    stated = [f"{key}={value}" for key, value in counts.items() if value]
    gres = [f"Gres=gpu:{short_model(node.model)}:{node.gpus}"] if node.gpus else []
    return " ".join([*stated, *gres, "State=UNKNOWN"])


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
