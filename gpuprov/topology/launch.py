"""Command lines that start a job: one process per GPU, bound to the nearest CPUs, with its environment.

Pure functions of the hosts, the job and the known topology.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuprov.errors import InvalidInput
from gpuprov.topology import Topology

_CPU_LIST = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


@dataclass(frozen=True)
class Host:
    """A node of the job: its name, the address for the other nodes, and the number of its GPUs that take
    part.
    """

    name: str
    address: str
    gpus: int


@dataclass(frozen=True)
class Job:
    """A job to start.

    Attributes:
        hosts: the nodes; the ranks meet on the first.
        command: the program and its arguments; a Python script for torchrun.
        environment: variables of every process.
        devices: the GPUs that take part on each node; None for all of them.
        affinity: for each GPU that takes part the CPUs nearest to it (`0-23,48-71`); empty if unknown.
        port: of the rendezvous on the first host.
    """

    hosts: tuple[Host, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[int, ...] | None = None
    affinity: tuple[str, ...] = ()
    port: int = 29500

    @property
    def ranks(self) -> int:
        """Return the number of processes: one per GPU."""
        return sum(host.gpus for host in self.hosts)


@dataclass(frozen=True)
class Line:
    """A command line and the host to run it on; None for a single line that runs on any host."""

    host: str | None
    text: str


def affinity_of(topology: Topology, devices: Sequence[int] | None = None) -> tuple[str, ...]:
    """Return the CPUs nearest to each GPU that takes part; empty unless they are known for all of them.

    Raises:
        InvalidInput: the node has no such device.
    """
    chosen = list(range(len(topology.gpus))) if devices is None else list(devices)
    missing = [device for device in chosen if f"GPU{device}" not in topology.gpus]
    if missing:
        have = ", ".join(topology.gpus)
        raise InvalidInput(f"no GPU {missing[0]} in the topology", expected=f"one of {have}")
    cpus = [
        topology.affinity[f"GPU{device}"].cpus for device in chosen if f"GPU{device}" in topology.affinity
    ]
    known = tuple(text for text in cpus if text and _CPU_LIST.fullmatch(text))
    return known if len(known) == len(chosen) else ()


# --- torchrun ---------------------------------------------------------------------------------------------


def torchrun(job: Job) -> list[Line]:
    """Return a line for each node; with known affinity each process is bound to the CPUs of its GPU."""
    variables = {**_visible(job), **job.environment}
    return [
        Line(host.name, _assigned(variables, _torchrun(job, rank))) for rank, host in enumerate(job.hosts)
    ]


def _torchrun(job: Job, rank: int) -> list[str]:
    """Return torchrun's command for one node; several nodes meet on the first one."""
    processes = f"--nproc-per-node={job.hosts[rank].gpus}"
    if len(job.hosts) == 1:
        meeting = ["--standalone", processes]
    else:
        meeting = [
            f"--nnodes={len(job.hosts)}",
            processes,
            f"--node-rank={rank}",
            "--rdzv-backend=static",
            f"--rdzv-endpoint={_endpoint(job)}",
        ]
    return ["torchrun", *meeting, *_bound(job)]


def _bound(job: Job) -> list[str]:
    """Return the program and its arguments for torchrun; bind each process to its GPU's CPUs if these differ
    between GPUs.
    """
    if len(set(job.affinity)) < 2:
        return list(job.command)
    cpus = " ".join(job.affinity)
    script = f'cpus=({cpus}); exec taskset -c "${{cpus[$LOCAL_RANK]}}" python "$@"'
    return ["--no-python", "bash", "-c", script, "bash", *job.command]


def _endpoint(job: Job) -> str:
    """Return address and port of the rendezvous on the first node; an IPv6 address in brackets."""
    address = job.hosts[0].address
    return f"[{address}]:{job.port}" if ":" in address else f"{address}:{job.port}"


# --- mpirun, horovodrun -----------------------------------------------------------------------------------


def mpirun(job: Job) -> list[Line]:
    """Return one line of Open MPI, to run on any node that reaches the others."""
    arguments = ["mpirun", "-np", str(job.ranks), "-H", _slots(job), *_mapping(job), *_mpi_interface(job)]
    for name, value in {**_visible(job), **job.environment}.items():
        arguments += ["-x", f"{name}={value}"]
    return [Line(None, _shell([*arguments, *job.command]))]


def _mapping(job: Job) -> list[str]:
    """Return options that bind ranks near their GPUs: in blocks if the affinity has equal blocks, not at all
    for another affinity, by sockets in turn if it is unknown.
    """
    groups = list(dict.fromkeys(job.affinity))
    each = len(job.affinity) // len(groups) if groups else 0
    if groups and job.affinity == tuple(cpus for cpus in groups for _ in range(each)):
        place = "socket" if len(groups) <= 2 else "numa"
        return ["--map-by", f"ppr:{each}:{place}", "--bind-to", place]
    if groups:
        return ["--map-by", "slot", "--bind-to", "none"]
    return ["--map-by", "socket", "--bind-to", "socket"]


def _mpi_interface(job: Job) -> list[str]:
    """Return options that bind MPI's own traffic to NCCL's interface, if there are several nodes and it is
    stated by its exact name.
    """
    stated = job.environment.get("NCCL_SOCKET_IFNAME", "")
    if len(job.hosts) == 1 or not stated.startswith("="):
        return []
    return ["--mca", "btl_tcp_if_include", stated.removeprefix("=")]


def horovodrun(job: Job) -> list[Line]:
    """Return one line; horovodrun passes its own environment to every process. It uses NCCL's interface if
    there are several nodes and that is stated by its exact name.
    """
    arguments = ["horovodrun", "-np", str(job.ranks), "-H", _slots(job)]
    stated = job.environment.get("NCCL_SOCKET_IFNAME", "")
    if len(job.hosts) > 1 and stated.startswith("="):
        arguments += ["--network-interface", stated.removeprefix("=")]
    return [Line(None, _assigned({**_visible(job), **job.environment}, [*arguments, *job.command]))]


def _slots(job: Job) -> str:
    """Return `address:GPUs` of each node, with commas."""
    return ",".join(f"{host.address}:{host.gpus}" for host in job.hosts)


# --- docker -----------------------------------------------------------------------------------------------

# Limits of shared and locked memory that NVIDIA's framework containers request at start.
_MEMORY = ["--shm-size=1g", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]


def docker(job: Job, image: str, *, plain: bool = False) -> list[Line]:
    """Return a line for each node: a container with the job's GPUs that runs torchrun.

    Args:
        job: the job to start.
        image: the image's name.
        plain: run the command itself instead of torchrun.
    """
    lines = []
    for rank, host in enumerate(job.hosts):
        inner = list(job.command) if plain else _torchrun(job, rank)
        arguments = ["docker", "run", "--rm", "--gpus", _gpus(job), *_MEMORY, *_network(job)]
        for name, value in job.environment.items():
            arguments += ["-e", f"{name}={value}"]
        lines.append(Line(host.name, _shell([*arguments, image, *inner])))
    return lines


def _gpus(job: Job) -> str:
    """Return the value of --gpus; Docker parses it as CSV, so a list of devices needs its own quotes."""
    return "all" if job.devices is None else '"device=' + ",".join(map(str, job.devices)) + '"'


def _network(job: Job) -> list[str]:
    """Return docker's network options: several nodes need the host's network, RDMA also its devices; [] for
    one node.
    """
    if len(job.hosts) == 1:
        return []
    rdma = job.environment.get("NCCL_IB_DISABLE") == "0"
    return ["--network=host", *(["--device=/dev/infiniband", "--cap-add=IPC_LOCK"] if rdma else [])]


# --- the shell --------------------------------------------------------------------------------------------


def _visible(job: Job) -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES for the devices that take part; nothing if all do."""
    return {} if job.devices is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, job.devices))}


def _assigned(variables: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Return a shell's command line with variables assigned in front."""
    return " ".join([*(f"{name}={_quote(value)}" for name, value in variables.items()), _shell(arguments)])


def _shell(arguments: Sequence[str]) -> str:
    """Return the arguments quoted for a shell, as one line."""
    return " ".join(_quote(argument) for argument in arguments)


def _quote(word: str) -> str:
    """Quote for a shell, also a leading `=`, which zsh expands."""
    quoted = shlex.quote(word)
    return f"'{word}'" if quoted == word and word.startswith("=") else quoted


LAUNCHERS: dict[str, Callable[[Job], list[Line]]] = {
    "torchrun": torchrun,
    "mpirun": mpirun,
    "horovodrun": horovodrun,
}
