"""Nodes for exports, from the lock or from their facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gpuprov.catalog import Catalog
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.inventory.exports.node import Node, Slice
from gpuprov.inventory.exports.slurm import core_indexes, slurm_cores
from gpuprov.model.lock import Lock, LockedGroup
from gpuprov.model.racks import place_of_hosts
from gpuprov.probe.collect import ask
from gpuprov.probe.facts import Facts, Missing
from gpuprov.probe.parse.mig import MigInstance
from gpuprov.probe.payload import ANSWER_LIMIT, Parameters, build
from gpuprov.ssh.dispatch import DIRECT, Dispatch
from gpuprov.ssh.transport import ConnectionLimits, Session, fan_out, targets
from gpuprov.topology import Topology
from gpuprov.topology.live import topology_of

NVML_PLUGINS = (
    *(f"/usr/lib/{arch}-linux-gnu/slurm-wlm/gpu_nvml.so" for arch in ("x86_64", "aarch64")),
    *(f"/{folder}/slurm/gpu_nvml.so" for folder in ("usr/lib64", "usr/lib", "usr/local/lib")),
)
"""Places of Slurm's plugin for NVML: Debian's package, RPMs, and builds from source."""
ASKED = Parameters(mig=True, cores=True, files=NVML_PLUGINS)
LIMITS = ConnectionLimits(connect_s=10, command_s=60, answer_bytes=ANSWER_LIMIT)


def locked_nodes(lock: Lock, names: Iterable[str], catalog: Catalog) -> Iterator[Node]:
    """Yield nodes as in the lock: names, addresses, GPUs, software, places, the interval of health checks,
    and that no GPU has MIG if the lock states no MIG; the other values are not set.

    Raises:
        KeyError: a name is not in the lock.
        GpuprovError: as `find_gpu`.
    """
    groups = lock.hosts()
    racks, domains = place_of_hosts(lock.racks), place_of_hosts(lock.nvlink_domains)
    for name in names:
        group = groups[name]
        places = {"rack": racks.get(name), "nvlink_domain": domains.get(name), "site": group.site}
        yield Node(
            name=name,
            address=group.address_for_others(name),
            gpus=group.hardware.gpu_count,
            model=find_gpu(catalog, group.hardware.gpu_model).nvidia_smi_name,
            partitioned=None if group.setting("mig") else frozenset(),
            labels=_software(group),
            places={kind: place for kind, place in places.items() if place},
            health_s=(group.setting("health") or {}).get("interval", 0),
        )


def _software(group: LockedGroup) -> dict[str, str]:
    """Return the driver's version and, if it is locked, the names of CUDA's toolkits, separated by blanks."""
    cuda = group.components.cuda
    toolkits = {"cuda": " ".join(cuda.toolkits)} if cuda else {}
    return {"driver": group.components.driver.version, **toolkits}


def live_nodes(
    lock: Lock, names: Iterable[str], catalog: Catalog, *, dispatch: Dispatch = DIRECT
) -> Iterator[tuple[Node, GpuprovError | None]]:
    """Yield each node with values from its facts and None; without an answer as in the lock, with the error.

    The order is that of `names`, after all nodes have answered.

    Raises:
        KeyError, GpuprovError: as `locked_nodes`.
    """
    known = {node.name: node for node in locked_nodes(lock, names, catalog)}
    payload = build(ASKED, password=dispatch.password)

    def visit(session: Session) -> Node:
        """Return what is exported of a node, which is kept for all; its facts are not."""
        node = known[session.target.name]
        return observed(node, ask(session, payload), topology_of(session))

    nodes = targets(lock, known)
    answers = {t.name: answer for t, answer in fan_out(nodes, visit, dispatch=dispatch, limits=LIMITS)}
    for name, node in known.items():
        answer = answers[name]
        yield (node, answer) if isinstance(answer, GpuprovError) else (answer, None)


def observed(node: Node, facts: Facts, topology: Topology | None) -> Node:
    """Return a node with the counts from its facts and its topology.

    Without a topology the number of GPUs is kept and the cores of the GPUs are not set. Device files are set
    as by `_with_devices`. Raises `Missing` as the facts do, and as `_with_devices`.
    """
    cpu = facts.cpu
    sockets = max(len({socket for socket, _ in cpu.places.values()}) or cpu.sockets, 1)
    cores = len(set(cpu.places.values()))
    threads = cpu.logical // cores if cores else cpu.threads_per_core or 1
    indexes = core_indexes(cpu.places)
    near = [topology.affinity.get(gpu) for gpu in topology.gpus] if topology else []
    known = replace(
        node,
        gpus=len(topology.gpus) if topology else node.gpus,
        cpus=cpu.logical,
        memory_mib=facts.memory.total_mib,
        sockets=sockets,
        cores_per_socket=cpu.logical // sockets // threads,
        threads_per_core=threads,
        gpu_memory_mib=_gpu_memory(facts),
        gpu_cores=tuple(slurm_cores(each.cpus, indexes) if each and each.cpus else "" for each in near),
        nvml=_has_nvml_plugin(facts),
    )
    return _with_devices(known, facts)


def _has_nvml_plugin(facts: Facts) -> bool | None:
    """Return whether Slurm's plugin for NVML is installed, None if the node did not say."""
    try:
        return any(file.kind != "absent" for path, file in facts.files.items() if path in NVML_PLUGINS)
    except Missing:
        return None


def _with_devices(node: Node, facts: Facts) -> Node:
    """Return a node with the device files of its GPUs and MIG instances, as nvidia-smi lists them.

    Unchanged if nvidia-smi does not list as many GPUs as the node has, each with a device file of its own.

    Raises:
        NodeFailed: the driver does not list the files of a MIG instance.
    """
    gpus = () if facts.smi.error else facts.smi.gpus
    minors = {gpu.minor: gpu.index for gpu in gpus if gpu.minor is not None}
    if not len(minors) == len(gpus) == node.gpus:
        return node
    return replace(
        node,
        gpu_minors=tuple(sorted(minors, key=minors.__getitem__)),
        partitioned=frozenset(gpu.index for gpu in gpus if gpu.mig.current),
        slices=tuple(_slice(each, minors) for each in facts.mig_instances),
    )


def _slice(instance: MigInstance, indexes: Mapping[int, int]) -> Slice:
    """Return a MIG instance with its device files.

    Args:
        indexes: N of /dev/nvidiaN → index of the GPU in nvidia-smi.

    Raises:
        NodeFailed: the driver does not list the files of the instance and of exactly one compute instance.
    """
    if instance.gpu not in indexes or instance.capability is None or len(instance.compute) != 1:
        raise NodeFailed(
            f"MIG {instance.profile} of GPU {instance.gpu} has {len(instance.compute)} compute instances",
            expected="one, with its files in /proc/driver/nvidia/capabilities",
            do="partition the GPU by the setting mig",
        )
    capabilities = [f"/dev/nvidia-caps/nvidia-cap{n}" for n in (instance.capability, *instance.compute)]
    return Slice(indexes[instance.gpu], instance.profile, (f"/dev/nvidia{instance.gpu}", *capabilities))


def _gpu_memory(facts: Facts) -> int:
    """Return the memory of the first GPU in MiB, from nvidia-smi; 0 without its answer."""
    if facts.smi.error or not facts.smi.gpus:
        return 0
    return facts.smi.gpus[0].memory_total_mib or 0
