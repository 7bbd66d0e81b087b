"""`gpuprov topo`: show and judge the links between GPUs, NICs and CPUs of a node."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import show, tell
from gpuprov.errors import Exit, GpuprovError, InvalidInput
from gpuprov.files.writing import replace_file
from gpuprov.topology import Topology, driver_error, parse_topology
from gpuprov.topology.live import matrix_here
from gpuprov.topology.matrix import SCHEMA
from gpuprov.topology.verdict import as_document
from gpuprov.untrusted.stated import read_argument, stated_file


@click.command()
@click.argument("source", required=False, metavar="[HOST|FILE]")
@click.option("--local", is_flag=True, help="run `nvidia-smi topo -m` on this machine")
@options.lock_option
@options.identity_option
@options.known_hosts_option
@click.option(
    "-o", "--output", type=click.Choice(["table", "json", "svg"]), default="table", show_default=True
)
@click.option(
    "--svg",
    "picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="also write a drawing to this file",
)
@click.option("--expect-nvlink", is_flag=True, help="report a pair of GPUs without NVLink as a fault")
def command(
    source: str | None,
    local: bool,
    lock_path: Path,
    identity: str | None,
    known_hosts: str | None,
    output: str,
    picture: Path | None,
    expect_nvlink: bool,
) -> int:
    """Show the topology of HOST (a node of the lock, or [USER@]HOST[:PORT]), of this machine, or of FILE, a
    saved `nvidia-smi topo -m` (`-` is standard input).

    For a node of the lock whose board has NVLink, --expect-nvlink is the default.
    """
    if source is not None and not local and source != "-" and not Path(source).is_file():
        text, expect_nvlink = _ask(source, lock_path, identity, known_hosts, expect_nvlink)
        title, local = source, True
    else:
        text, title = _read(source, local)
    with stated_file(title, expected="the output of `nvidia-smi topo -m`"):
        complaint = driver_error(text)
        if complaint is not None:
            return _complain(complaint, output, Exit.FAILED if local else Exit.OK)
        topology = parse_topology(text)
        document = as_document(topology, expect_nvlink=expect_nvlink)
    if picture is not None:
        _write_picture(picture, topology, title)
    if output == "svg":
        show(_svg(topology, title))
    elif output == "json":
        options.print_json(document)
    else:
        _print_table(topology, document["verdict"])
    return Exit.FAILED if any(finding["level"] == "bad" for finding in document["verdict"]) else Exit.OK


def _ask(
    host: str, lock_path: Path, identity: str | None, known_hosts: str | None, expect_nvlink: bool
) -> tuple[str, bool]:
    """Return a host's answer to `nvidia-smi topo -m`, and whether NVLink between all its GPUs is expected.

    It is expected if `expect_nvlink`, or if the lock has the host with NVLink. A host's error is raised.
    """
    from gpuprov.model.lock import read_lock
    from gpuprov.ssh.transport import fan_out
    from gpuprov.topology.live import ask_matrix

    hosts = read_lock(lock_path).hosts() if lock_path.is_file() else {}
    expected = host in hosts and bool(hosts[host].hardware.nvlink)
    [(_, answer)] = fan_out([options.way_to(host, lock_path, identity, known_hosts)], ask_matrix)
    if isinstance(answer, GpuprovError):
        raise answer
    return answer, expect_nvlink or expected


def _read(source: str | None, local: bool) -> tuple[str, str]:
    """Return the output of `nvidia-smi topo -m` from this machine, a file or stdin, and the picture's title.

    Raises:
        InvalidInput: not exactly one of source and `local`, or the file cannot be read.
    """
    if local == (source is not None):
        raise InvalidInput(
            "nothing to read" if source is None else f"both --local and {source}",
            do="name a saved `nvidia-smi topo -m`, `-` for standard input, or give --local",
        )
    if source is None:
        return matrix_here(), "this machine"
    try:
        name = "standard input" if source == "-" else Path(source).name
        return read_argument(source).decode("utf-8", "replace"), name
    except OSError as error:
        raise InvalidInput(f"{source}: {error.strerror}", do="give a file, `-` or --local") from None


def _complain(complaint: str, output: str, code: Exit) -> int:
    """Print a driver's error message in place of a matrix; return the exit code."""
    if output == "json":
        options.print_json({"schema": SCHEMA, "error": complaint})
    else:
        show(f"gpuprov: the driver reports: {complaint}", err=True)
    return code


def _svg(topology: Topology, title: str) -> str:
    """Return a drawing of the topology as SVG."""
    from gpuprov.topology.svg import draw

    return draw(topology, title)


def _write_picture(path: Path, topology: Topology, title: str) -> None:
    """Write the drawing to a file; raise InvalidInput if that is not possible."""
    try:
        replace_file(path, _svg(topology, title))
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}", do="name a file that can be written") from None


def _print_table(topology: Topology, verdict: list[dict[str, str]]) -> None:
    """Print the matrix with CPUs and NUMA nodes, the devices of NICs, and the findings."""
    names = [*topology.gpus, *(nic.name for nic in topology.nics)]
    options.print_table([["", *names, "CPUs", "NUMA"], *(_row(topology, name, names) for name in names)])
    for nic in topology.nics:
        if nic.device != nic.name:
            tell(f"{nic.name}: {nic.device}")
    for finding in verdict:
        tell(f"{finding['level']:<4}  {finding['text']}")


def _row(topology: Topology, name: str, names: list[str]) -> list[str]:
    """Return a device's cells: its name, the links to the others, its nearest CPUs and NUMA node."""
    near = topology.affinity.get(name)
    numa = "" if near is None or near.numa is None else str(near.numa)
    cells = [topology.matrix[name].get(other, "") for other in names]
    return [name, *cells, (near.cpus if near else None) or "", numa]
