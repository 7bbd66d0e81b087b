"""The exact lines that start a job: one process a GPU, bound near it, with the environment it needs.

Pure: hosts, job and what is known of their topology in; lines for a shell out.
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
    """A node of the job: its name, the address others reach it by, and how many GPUs take part."""

    name: str
    address: str
    gpus: int


@dataclass(frozen=True)
class Job:
    """What is started.

    Attributes:
        hosts: the nodes; the first is where the ranks meet.
        command: the program and its arguments; a Python script for torchrun.
        environment: variables of every process.
        devices: the GPUs that take part on each node; None for all of them.
        affinity: for each GPU that takes part the CPUs nearest to it (`0-23,48-71`); empty where not known.
        port: where the ranks meet on the first host.
    """

    hosts: tuple[Host, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[int, ...] | None = None
    affinity: tuple[str, ...] = ()
    port: int = 29500

    @property
    def ranks(self) -> int:
        """How many processes: one a GPU."""
        return sum(host.gpus for host in self.hosts)


@dataclass(frozen=True)
class Line:
    """A command line, and the host it is to be typed on; None means one line for all, typed anywhere."""

    host: str | None
    text: str


def affinity_of(topology: Topology, devices: Sequence[int] | None = None) -> tuple[str, ...]:
    """The CPUs nearest to each GPU that takes part; empty where the topology does not say it of all.

    Raises:
        InvalidInput: a device that the node does not have.
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
    """A line for each node; with known affinity each process is bound to the CPUs of its GPU."""
    variables = {**_visible(job), **job.environment}
    return [
        Line(host.name, _assigned(variables, _torchrun(job, rank))) for rank, host in enumerate(job.hosts)
    ]


def _torchrun(job: Job, rank: int) -> list[str]:
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
    """The program, each process on the CPUs of its own GPU where several sets of CPUs are known."""
    if len(set(job.affinity)) < 2:
        return list(job.command)
    cpus = " ".join(job.affinity)
    script = f'cpus=({cpus}); exec taskset -c "${{cpus[$LOCAL_RANK]}}" python "$@"'
    return ["--no-python", "bash", "-c", script, "bash", *job.command]


def _endpoint(job: Job) -> str:
    address = job.hosts[0].address
    return f"[{address}]:{job.port}" if ":" in address else f"{address}:{job.port}"


# --- mpirun, horovodrun -----------------------------------------------------------------------------------


def mpirun(job: Job) -> list[Line]:
    """One line of Open MPI; it is typed on any node that reaches the others."""
    arguments = ["mpirun", "-np", str(job.ranks), "-H", _slots(job), *_mapping(job), *_mpi_interface(job)]
    for name, value in {**_visible(job), **job.environment}.items():
        arguments += ["-x", f"{name}={value}"]
    return [Line(None, _shell([*arguments, *job.command]))]


def _mapping(job: Job) -> list[str]:
    """Ranks beside their GPUs: by sockets in turn, or in blocks where GPUs are known to stand in blocks."""
    groups = list(dict.fromkeys(job.affinity))
    each = len(job.affinity) // len(groups) if groups else 0
    if groups and job.affinity == tuple(cpus for cpus in groups for _ in range(each)):
        place = "socket" if len(groups) <= 2 else "numa"
        return ["--map-by", f"ppr:{each}:{place}", "--bind-to", place]
    if groups:
        return ["--map-by", "slot", "--bind-to", "none"]
    return ["--map-by", "socket", "--bind-to", "socket"]


def _mpi_interface(job: Job) -> list[str]:
    """MPI's own traffic over the interface that NCCL uses, where that is one by name."""
    stated = job.environment.get("NCCL_SOCKET_IFNAME", "")
    if len(job.hosts) == 1 or not stated.startswith("="):
        return []
    return ["--mca", "btl_tcp_if_include", stated.removeprefix("=")]


def horovodrun(job: Job) -> list[Line]:
    """One line; horovodrun hands its own environment to every process."""
    arguments = ["horovodrun", "-np", str(job.ranks), "-H", _slots(job)]
    stated = job.environment.get("NCCL_SOCKET_IFNAME", "")
    if len(job.hosts) > 1 and stated.startswith("="):
        arguments += ["--network-interface", stated.removeprefix("=")]
    return [Line(None, _assigned({**_visible(job), **job.environment}, [*arguments, *job.command]))]


def _slots(job: Job) -> str:
    return ",".join(f"{host.address}:{host.gpus}" for host in job.hosts)


# --- docker -----------------------------------------------------------------------------------------------

# Shared memory and locked memory as NVIDIA's framework containers ask for them at start.
_MEMORY = ["--shm-size=1g", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]


def docker(job: Job, image: str, *, plain: bool = False) -> list[Line]:
    """A line for each node: a container with the job's GPUs, and torchrun in it.

    Args:
        job: what is started.
        image: the image's name.
        plain: start the command itself, not torchrun with it.
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
    """Docker reads the value as CSV, so a list of devices has quotes of its own."""
    return "all" if job.devices is None else '"device=' + ",".join(map(str, job.devices)) + '"'


def _network(job: Job) -> list[str]:
    """Several nodes meet on the host's network; RDMA needs its devices, too."""
    if len(job.hosts) == 1:
        return []
    rdma = job.environment.get("NCCL_IB_DISABLE") == "0"
    return ["--network=host", *(["--device=/dev/infiniband", "--cap-add=IPC_LOCK"] if rdma else [])]


# --- the shell --------------------------------------------------------------------------------------------


def _visible(job: Job) -> dict[str, str]:
    return {} if job.devices is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, job.devices))}


def _assigned(variables: Mapping[str, str], arguments: Sequence[str]) -> str:
    return " ".join([*(f"{name}={_quote(value)}" for name, value in variables.items()), _shell(arguments)])


def _shell(arguments: Sequence[str]) -> str:
    return " ".join(_quote(argument) for argument in arguments)


def _quote(word: str) -> str:
    """Quoted where a shell would read more into it; zsh does so with a leading `=`."""
    quoted = shlex.quote(word)
    return f"'{word}'" if quoted == word and word.startswith("=") else quoted


LAUNCHERS: dict[str, Callable[[Job], list[Line]]] = {
    "torchrun": torchrun,
    "mpirun": mpirun,
    "horovodrun": horovodrun,
}
