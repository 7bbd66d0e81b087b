"""`gpuprov nccl`: judge NCCL's log, and measure an all-reduce."""

from __future__ import annotations

import io
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import tell
from gpuprov.cli.nccl_derive import derive
from gpuprov.errors import Exit, InvalidInput
from gpuprov.untrusted.stated import open_stated

if TYPE_CHECKING:
    from gpuprov.finding import Finding
    from gpuprov.nccl.shells import Shell
    from gpuprov.nccl.verdict import Inter, Intra


T = TypeVar("T")


@click.group()
def command() -> None:
    """Judge NCCL's log, derive its network settings, measure an all-reduce."""


@command.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "--expect", "intra", type=click.Choice(["p2p", "nvlink"]), help="path that is expected within a node"
)
@click.option(
    "--expect-inter",
    "inter",
    type=click.Choice(["ib", "roce", "efa", "socket"]),
    help="path that is expected between nodes",
)
def parse(logs: tuple[str, ...], output: str, intra: str | None, inter: str | None) -> int:
    """Judge the output of a job that ran with NCCL_DEBUG=INFO; several files, or `-`, are read as one log.

    Exit 1 if an expectation is given and the verdict is bad.
    """
    from gpuprov.nccl.log import read_log
    from gpuprov.nccl.verdict import ExpectedPaths, judge_log
    from gpuprov.untrusted.stated import stated_file

    paths = ExpectedPaths(cast("Intra | None", intra), cast("Inter | None", inter))
    with stated_file(", ".join(logs), expected="the output of a job that ran with NCCL_DEBUG=INFO"):
        with ExitStack() as files:
            log = read_log(_open(name, files) for name in logs)
        verdict = judge_log(log, paths)
        document = {**log.as_dict(), "verdict": [finding.as_dict() for finding in verdict]}
    if output == "json":
        options.print_json(document)
    else:
        _print(document, verdict)
    failed = any(finding.level == "bad" for finding in verdict)
    return Exit.FAILED if failed and (intra or inter) else Exit.OK


command.add_command(derive)


@command.command()
@click.argument("host", required=False)
@click.option("--local", is_flag=True, help="run on this machine")
@options.lock_option
@options.identity_option
@options.known_hosts_option
@click.option("--gpus", type=click.IntRange(2), help="number of GPUs that take part  [default: all]")
@click.option("--disable-p2p", is_flag=True, help="disable direct paths between GPUs; use host memory")
@click.option("--socket-only", is_flag=True, help="use plain sockets only")
@click.option("--compare", is_flag=True, help="measure all three variants one after the other")
@click.option("--parameters", type=float, help="estimate the all-reduce of a model of this size: 7e9")
@click.option("--python", help="interpreter that has PyTorch")
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    default=300,
    show_default=True,
    help="time limit of one run, in seconds",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def check(
    host: str | None,
    local: bool,
    lock_path: Path,
    identity: str | None,
    known_hosts: str | None,
    gpus: int | None,
    disable_p2p: bool,
    socket_only: bool,
    compare: bool,
    parameters: float | None,
    python: str | None,
    timeout_s: float,
    output: str,
) -> int:
    """Measure an all-reduce between the GPUs of HOST (a node of the lock, or [USER@]HOST[:PORT]), or of this
    machine, and compare it with the limit of the links.

    nccl-tests are used if they are on the PATH, otherwise libnccl, otherwise PyTorch (always with --python).
    No setting of the machine changes: variants differ in the environment of the started programs. Exit 1 if
    the verdict is bad.
    """
    from gpuprov.accept.allreduce import write_script
    from gpuprov.nccl.check import (
        SCHEMA,
        VARIANTS,
        Machine,
        Measurement,
        Variant,
        inspect_machine,
        measure,
        tool,
    )
    from gpuprov.nccl.shells import Local, on_node

    if sum((disable_p2p, socket_only, compare)) > 1:
        raise InvalidInput("more than one of --disable-p2p, --socket-only, --compare", do="give one of them")
    if local == (host is not None):
        raise InvalidInput(
            "both HOST and --local" if local else "no host is named", do="name one host, or give --local"
        )
    one: Variant = "no-p2p" if disable_p2p else "socket" if socket_only else "default"
    wanted = [variant for variant in VARIANTS if compare or variant == one]

    def measure_all(shell: Shell) -> tuple[Machine, list[Measurement]]:
        machine = inspect_machine(gpus, shell)
        name, line = tool(machine.gpus, python, shell, write_script(Path(folder)))
        return machine, [measure(machine, each, name, line, timeout_s, shell) for each in wanted]

    with tempfile.TemporaryDirectory() as folder:
        if host is None:
            machine, outcomes = measure_all(Local())
        else:
            target = options.way_to(host, lock_path, identity, known_hosts)
            machine, outcomes = on_node(target, measure_all, command_s=timeout_s)
    runs = [outcome.as_dict(machine.gpus, parameters) for outcome in outcomes]
    if output == "json":
        options.print_json({"schema": SCHEMA, "gpus": machine.gpus, "runs": runs})
    else:
        _print_runs(machine.gpus, runs)
    failed = any(finding.level == "bad" for outcome in outcomes for finding in outcome.verdict)
    return Exit.FAILED if failed else Exit.OK


def _open(name: str, files: ExitStack) -> TextIO:
    """Return an open log: stdin for `-`, else a file that `files` closes; raise InvalidInput on an error."""
    if name == "-":
        return io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace")
    try:
        file = open_stated(Path(name))
    except OSError as error:
        raise InvalidInput(f"{name}: {error.strerror}", do="give the file of a log, or `-`") from None
    return files.enter_context(io.TextIOWrapper(file, encoding="utf-8", errors="replace"))


def _print(document: dict[str, Any], verdict: list[Finding]) -> None:
    """Print the summary of a log, then the findings.

    An unknown version is `unknown`, an unknown number of ranks or nodes `?`; other rows without a value are
    left out.
    """
    cuda = f" (CUDA {document['cuda']})" if document["cuda"] else ""
    rows = {
        "NCCL": f"{document['version'] or 'unknown'}{cuda}",
        "ranks": f"{document['ranks'] or '?'} on {document['nodes'] or '?'} nodes",
        "within nodes": _counts(document["transports"]["intra"]),
        "between nodes": _counts(document["transports"]["inter"]),
        "interfaces": ", ".join(document["interfaces"]),
        "HCAs": ", ".join(document["hcas"]),
        "environment": ", ".join(f"{name}={value}" for name, value in document["environment"].items()),
    }
    for label, value in rows.items():
        if value:
            tell(f"{label:<14} {value}")
    for finding in verdict:
        tell(f"{finding.level:<4}  {finding.text}")


def _counts(transports: dict[str, int]) -> str:
    """Return transports as text, `P2P/CUMEM 16, NET/IB 2`: name and number of connections."""
    return ", ".join(f"{name} {count}" for name, count in transports.items())


def _print_runs(gpus: int, runs: list[dict[str, Any]]) -> None:
    """Print a table of the measured variants, then estimates and findings; bandwidths are in GB/s."""
    tell(f"all-reduce over {gpus} GPUs with {runs[0]['tool']}; bus bandwidth in GB/s")
    tell(f"{'variant':<9}{'peak':>8}{'limit':>8}{'share':>7}  paths")
    for row in runs:
        measured = row["bus_bandwidth"]
        peak = f"{measured['peak']:.1f}" if measured else "none"
        limit = f"{row['limit']['gbs']:.1f}" if row["limit"] else "-"
        share = f"{row['share']:.0%}" if row["share"] is not None else "-"
        paths = _counts({**row["transports"]["intra"], **row["transports"]["inter"]})
        tell(f"{row['variant']:<9}{peak:>8}{limit:>8}{share:>7}  {paths}")
    for row in runs:
        if model := row["estimate"]:
            rough, ring = f"{model['seconds']:.3f} s", f"{model['seconds_ring']:.3f} s"
            text = f"{rough} by parameters * 4 bytes / bandwidth, {ring} in a ring of {gpus}"
            tell(f"{row['variant']}: {model['parameters']:g} parameters: {text}")
    for row in runs:
        for finding in row["verdict"]:
            tell(f"{finding['level']:<4}  {row['variant']}: {finding['text']}")
