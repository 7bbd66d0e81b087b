"""Nodes for exports, from the lock or from their facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from gpuprov.catalog import Catalog
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.errors import GpuprovError
from gpuprov.inventory.exports.node import Node
from gpuprov.inventory.exports.slurm import slurm_cores
from gpuprov.model.lock import Lock
from gpuprov.probe.collect import ask
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import ANSWER_LIMIT, Parameters, build
from gpuprov.ssh.contained import contained
from gpuprov.ssh.dispatch import DIRECT, Dispatch
from gpuprov.ssh.transport import ConnectionLimits, Session, fan_out, targets
from gpuprov.topology import Topology
from gpuprov.topology.live import topology_of

LIMITS = ConnectionLimits(connect_s=10, command_s=60, answer_bytes=ANSWER_LIMIT)


def locked_nodes(lock: Lock, names: Iterable[str], catalog: Catalog) -> Iterator[Node]:
    """Yield nodes as in the lock: names, addresses, GPUs; the other values are not set."""
    groups = lock.hosts()
    for name in names:
        hardware = groups[name].hardware
        model = find_gpu(catalog, hardware.gpu_model).nvidia_smi_name
        yield Node(name, groups[name].address_for_others(name), hardware.gpu_count, model)


def live_nodes(
    lock: Lock, names: Iterable[str], catalog: Catalog, *, dispatch: Dispatch = DIRECT
) -> Iterator[tuple[Node, GpuprovError | None]]:
    """Yield each node with values from its facts and None; without an answer as in the lock, with the error.

    The order is that of `names`, after all nodes have answered.
    """
    known = {node.name: node for node in locked_nodes(lock, names, catalog)}
    payload = build(Parameters(), password=dispatch.password)

    def visit(session: Session) -> tuple[Facts, Topology | None]:
        return ask(session, payload), topology_of(session)

    nodes = targets(lock, known)
    answers = {t.name: answer for t, answer in fan_out(nodes, visit, dispatch=dispatch, limits=LIMITS)}
    for name, node in known.items():
        answer = answers[name]
        if isinstance(answer, GpuprovError):
            yield node, answer
            continue
        found = contained(name, partial(observed, node, answer[0], answer[1]))
        yield (node, found) if isinstance(found, GpuprovError) else (found, None)


def observed(node: Node, facts: Facts, topology: Topology | None) -> Node:
    """Return a node with the counts from its facts and its topology.

    Without a topology the number of GPUs is kept and the cores of the GPUs are not set.
    """
    cpu = facts.cpu
    sockets, threads = max(cpu.sockets, 1), cpu.threads_per_core or 1
    cores = cpu.logical // sockets // threads
    near = [topology.affinity.get(gpu) for gpu in topology.gpus] if topology else []
    gpus = len(topology.gpus) if topology else node.gpus
    return Node(
        name=node.name,
        address=node.address,
        gpus=gpus,
        model=node.model,
        cpus=cpu.logical,
        memory_mib=facts.memory.total_mib,
        sockets=sockets,
        cores_per_socket=cores,
        threads_per_core=threads,
        gpu_memory_mib=_gpu_memory(facts),
        gpu_cores=tuple(
            slurm_cores(each.cpus, sockets, cores) if each and each.cpus else "" for each in near
        ),
    )


def _gpu_memory(facts: Facts) -> int:
    """Return the memory of the first GPU in MiB, from nvidia-smi; 0 without its answer."""
    if facts.smi.error or not facts.smi.gpus:
        return 0
    return facts.smi.gpus[0].memory_total_mib or 0
