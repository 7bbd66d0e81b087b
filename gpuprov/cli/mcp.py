"""`gpuprov mcp`: serve the verbs that only read to an assistant, by the Model Context Protocol."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from gpuprov.cli.common import options
from gpuprov.errors import Exit, InvalidInput


@click.command()
@options.lock_option
def command(lock_path: Path) -> Exit:
    """Serve facts, drift, plan, doctor, status, explain and resolve on standard input and output.

    An assistant starts this command, and calls the verbs as tools; the answers are the verbs' JSON documents.
    Nothing that changes a node or a file of the fleet is offered. Only nodes of the lock, and this machine,
    can be read; without a lock, only this machine.
    """
    try:
        from gpuprov.cli.common.mcp_server import server
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("mcp"):
            raise
        raise InvalidInput(
            "the SDK of the Model Context Protocol is not installed",
            do=shlex.join([sys.executable, "-m", "pip", "install", "--only-binary=:all:", _requirement()]),
        ) from None
    server(lock_path).run("stdio")
    return Exit.OK


def _requirement() -> str:
    """Return the requirement of the extra `mcp`: `mcp<3,>=2.3`."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    stated = map(Requirement, requires("gpuprov") or [])
    extra = (each for each in stated if each.marker and each.name == "mcp")
    return next((f"{each.name}{each.specifier}" for each in extra), "mcp")
