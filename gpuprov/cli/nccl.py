"""`gpuprov nccl`: read NCCL's own log and judge it."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from gpuprov.finding import Finding
    from gpuprov.nccl.verdict import Inter, Intra


@click.group()
def command() -> None:
    """Read NCCL's own log and judge it."""


@command.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--expect", "intra", type=click.Choice(["p2p", "nvlink"]), help="The path within a node.")
@click.option(
    "--expect-inter",
    "inter",
    type=click.Choice(["ib", "roce", "efa", "socket"]),
    help="The path between nodes.",
)
def parse(logs: tuple[str, ...], output: str, intra: str | None, inter: str | None) -> int:
    """Read the output of a job run with NCCL_DEBUG=INFO; several files of one job, or `-`, are one log.

    Exits with 1 when an expectation is given and the verdict is bad.
    """
    from gpuprov.nccl.log import read_log
    from gpuprov.nccl.verdict import Expectation, judge

    with ExitStack() as files:
        log = read_log(_open(name, files) for name in logs)
    expected = Expectation(cast("Intra | None", intra), cast("Inter | None", inter))
    verdict = judge(log, expected)
    document = {**log.as_dict(), "verdict": [finding.as_dict() for finding in verdict]}
    if output == "json":
        click.echo(json.dumps(document, indent=2))
    else:
        _print(document, verdict)
    failed = any(finding.level == "bad" for finding in verdict)
    return Exit.FAILED if failed and (intra or inter) else Exit.OK


def _open(name: str, files: ExitStack) -> TextIO:
    if name == "-":
        return sys.stdin
    try:
        return files.enter_context(open(name, errors="replace"))  # noqa: PTH123 - closed by the stack
    except OSError as error:
        raise InvalidInput(f"{name}: {error.strerror}", do="give the file of a log, or `-`") from None


def _print(document: dict[str, Any], verdict: list[Finding]) -> None:
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
            click.echo(f"{label:<14} {value}")
    for finding in verdict:
        click.echo(f"{finding.level:<4}  {finding.text}")


def _counts(transports: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in transports.items())
