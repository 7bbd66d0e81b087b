"""`gpuprov launch`: print the exact command lines that start a job on nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import show
from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from gpuprov.topology.launch import Host, Job, Line

SCHEMA = "gpuprov.launch/1"

# All words after PROGRAM are arguments of the program.
_OPTIONS_FIRST = {"allow_interspersed_args": False}

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def command() -> None:
    """Print the exact lines that start a job; nothing is run.

    Hosts come from --hosts with --gpus-per-node, or from the lock.
    """


def _job_options(verb: F) -> F:
    """Add the options that all launchers share."""
    for decorate in reversed(
        (
            click.argument("program", nargs=-1, required=True, metavar="PROGRAM [ARGUMENTS]..."),
            click.option("--hosts", help="node set, such as gpu[01-02], in place of the lock's hosts"),
            click.option("--gpus-per-node", type=click.IntRange(1), help="number of GPUs of each of --hosts"),
            options.lock_option,
            options.limit_option,
            click.option("--devices", help="GPUs that take part on each node: 0,1  [default: all]"),
            click.option(
                "--topology",
                type=click.Path(dir_okay=False, path_type=Path),
                help="saved `nvidia-smi topo -m`: bind ranks to the CPUs nearest to their GPU",
            ),
            click.option(
                "-e",
                "--env",
                multiple=True,
                metavar="NAME=VALUE",
                help="environment variable of every process; repeatable",
            ),
            click.option("--port", type=click.IntRange(1, 65535), default=29500, show_default=True),
            options.output_option,
        )
    ):
        verb = decorate(verb)
    return verb


def _add(name: str, summary: str) -> None:
    """Add the subcommand of a launcher that has only the shared options."""

    @command.command(name, help=summary, context_settings=_OPTIONS_FIRST)
    @_job_options
    def launcher(output: str, **stated: Any) -> int:
        from gpuprov.topology.launch import LAUNCHERS

        return _show(LAUNCHERS[name](_job(**stated)), output)


_add("torchrun", "Print a command for each node, with rendezvous endpoint and node rank.")
_add("mpirun", "Print one Open MPI command, with ranks bound near their GPUs.")
_add("horovodrun", "Print one horovodrun command.")


@command.command("docker", context_settings=_OPTIONS_FIRST)
@click.option("--image", required=True)
@click.option("--plain", is_flag=True, help="start PROGRAM directly, without torchrun")
@_job_options
def docker_command(image: str, plain: bool, output: str, **stated: Any) -> int:
    """Print a command for each node: a container with the GPUs, and torchrun in it."""
    from gpuprov.topology.launch import docker

    return _show(docker(_job(**stated), image, plain=plain), output)


def _job(
    program: tuple[str, ...],
    hosts: str | None,
    gpus_per_node: int | None,
    lock_path: Path,
    limit: str | None,
    devices: str | None,
    topology: Path | None,
    env: tuple[str, ...],
    port: int,
) -> Job:
    """Return the job of a command line; its hosts come from `hosts`, or else from the lock.

    NCCL's variables of the lock are added if the hosts come from it; `env` overrides them. InvalidInput for
    an option that is not valid.
    """
    from gpuprov.topology.launch import Job

    chosen = _devices(devices)
    named = _stated_hosts(hosts, gpus_per_node, chosen) if hosts else _locked_hosts(lock_path, limit, chosen)
    affinity = _affinity(topology, chosen, named) if topology else ()
    result = {} if hosts else _locked_environment(lock_path, named)
    return Job(tuple(named), program, {**result, **_variables(env)}, chosen, affinity, port)


def _stated_hosts(hosts: str, gpus: int | None, devices: tuple[int, ...] | None) -> list[Host]:
    """Return a node set's hosts with their number of GPUs: that of the devices, else `gpus`.

    Raises:
        InvalidInput: neither devices nor `gpus` are given, or not a node set.
    """
    from gpuprov.model.nodeset import expand
    from gpuprov.topology.launch import Host

    count = len(devices) if devices else gpus
    if count is None:
        raise InvalidInput("--hosts without the number of GPUs", do="give --gpus-per-node or --devices")
    try:
        return [Host(name, name, count) for name in expand(hosts)]
    except ValueError as error:
        raise InvalidInput(f"not a set of nodes: {hosts!r}", expected=str(error)) from None


def _locked_hosts(lock_path: Path, limit: str | None, devices: tuple[int, ...] | None) -> list[Host]:
    """Return the lock's selected hosts with their number of GPUs: that of the devices, else all.

    Raises:
        InvalidInput: a host has no GPUs, or no host is selected.
    """
    from gpuprov.model.lock import read_lock
    from gpuprov.model.nodeset import fold
    from gpuprov.topology.launch import Host

    lock = read_lock(lock_path)
    groups = lock.hosts()
    found = [
        Host(
            name,
            groups[name].address_for_others(name),
            len(devices) if devices else groups[name].hardware.gpu_count,
        )
        for name in options.select(lock, (), limit)
    ]
    without = [host.name for host in found if not host.gpus]
    if without or not found:
        raise InvalidInput(f"no GPUs on {fold(without) or 'any node'}", do="choose others with --limit")
    return found


def _locked_environment(lock_path: Path, hosts: list[Host]) -> dict[str, str]:
    """Return the variables of NCCL that all these nodes have with the same value.

    Containers and Gloo do not read /etc/nccl.conf.
    """
    from gpuprov.model.lock import read_lock

    groups = read_lock(lock_path).hosts()
    first, *others = [groups[host.name].setting("nccl") or {} for host in hosts]
    return {name: str(value) for name, value in first.items() if all(o.get(name) == value for o in others)}


def _devices(stated: str | None) -> tuple[int, ...] | None:
    """Return GPU numbers from `0,1`; None for all. Raise InvalidInput for other texts and repetitions."""
    if stated is None:
        return None
    parts = [part.strip() for part in stated.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise InvalidInput(f"--devices {stated!r}", expected="GPU numbers, each once: 0,1")
    return tuple(int(part) for part in parts)


def _affinity(path: Path, devices: tuple[int, ...] | None, hosts: list[Host]) -> tuple[str, ...]:
    """Return the CPUs nearest to each GPU from a saved `nvidia-smi topo -m`; empty if they are not known.

    Raises:
        InvalidInput: the file cannot be read, lacks a device, or has another number of GPUs than a host.
    """
    from gpuprov.topology import parse_topology
    from gpuprov.topology.launch import affinity_of
    from gpuprov.untrusted.stated import read_bounded, stated_file

    expected = "the output of `nvidia-smi topo -m`"
    with stated_file(path, expected=expected, do="save that of a node there"):
        topology = parse_topology(read_bounded(path).decode("utf-8", "replace"))
        affinity = affinity_of(topology, devices)
    if any(host.gpus != len(affinity) for host in hosts) and affinity:
        raise InvalidInput(
            f"{path}: {len(affinity)} GPUs", expected=f"{hosts[0].gpus}, as many as take part on each node"
        )
    return affinity


def _variables(stated: tuple[str, ...]) -> dict[str, str]:
    """Return name → value from texts `NAME=VALUE`; raise InvalidInput for other texts."""
    pairs = [text.partition("=") for text in stated]
    for name, equals, _ in pairs:
        if not equals or not name.isidentifier():
            raise InvalidInput(f"--env {name!r}", expected="NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _show(lines: list[Line], output: str) -> int:
    """Print the command lines, with the host of each if there are several; return exit code 0."""
    if output == "json":
        rows = [{"host": line.host, "line": line.text} for line in lines]
        options.print_json({"schema": SCHEMA, "lines": rows})
        return Exit.OK
    several = len(lines) > 1
    for line in lines:
        show(f"# on {line.host}\n{line.text}" if several else line.text)
    return Exit.OK
