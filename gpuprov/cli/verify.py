"""`gpuprov verify`: testinfra looks with its own eyes, node by node."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprov.cli import options
from gpuprov.errors import Exit


@click.command()
@options.nodes_argument
@options.lock_option
@options.limit_option
@options.forks_option
@options.output_option
@click.option("--local", is_flag=True, help="this machine is the node: look here, without SSH")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="also write JUnit XML here")
@click.option("-K", "--ask-become-pass", is_flag=True, help="ask for sudo's password")
@options.verbose_option
def command(
    nodes: tuple[str, ...],
    lock_path: Path,
    limit: str | None,
    forks: int,
    output: str,
    local: bool,
    junit: Path | None,
    ask_become_pass: bool,
    verbose: int,
) -> Exit:
    """Look at every node and say where it is not as the lock says. Changes nothing.

    NODES are names, ranges (gpu[01-64]) or groups; none means all. -v shows what stands behind a failure.
    """
    from gpuprov.lock import read_lock
    from gpuprov.report.verification import recap
    from gpuprov.verify import run

    lock = read_lock(lock_path)
    names = options.select(lock, nodes, limit)
    password = click.prompt("sudo password", hide_input=True, err=True) if ask_become_pass else None
    verdict = run(lock, names, junit=junit, forks=forks, local=local, password=password)
    if output == "json":
        options.print_json(verdict.document())
    else:
        click.echo(recap(verdict, details=verbose > 0))
    if junit:
        options.note(f"JUnit XML is in {junit}")
    return verdict.exit_code
