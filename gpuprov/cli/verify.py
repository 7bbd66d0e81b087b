"""`gpuprov verify`: testinfra looks with its own eyes, node by node."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprov.cli.options import (
    forks_option,
    limit_option,
    lock_option,
    nodes_argument,
    note,
    output_option,
    print_json,
    select,
    verbose_option,
)


@click.command()
@nodes_argument
@lock_option
@limit_option
@output_option
@forks_option
@verbose_option
@click.option("--local", is_flag=True, help="this machine is the node: look here, without SSH")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="also write JUnit XML here")
def command(
    nodes: tuple[str, ...],
    lock_path: Path,
    limit: str | None,
    output: str,
    forks: int,
    verbose: int,
    local: bool,
    junit: Path | None,
) -> int:
    """Check that NODES (all of the lock, unless named) are as the lock says."""
    from gpuprov.lock import read_lock
    from gpuprov.report.verification import recap
    from gpuprov.verify import run

    lock = read_lock(lock_path)
    verdict = run(lock, select(lock, nodes, limit), junit=junit, forks=forks, local=local)
    if output == "json":
        print_json(verdict.document())
    else:
        click.echo(recap(verdict, details=verbose > 0))
    if junit:
        note(f"JUnit XML is in {junit}")
    return verdict.exit_code
