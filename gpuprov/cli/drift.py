"""`gpuprov drift`: what differs from the lock, in seconds."""

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
def command(nodes: tuple[str, ...], lock_path: Path, limit: str | None, forks: int, output: str) -> Exit:
    """Ask every node what it is, and say what differs from the lock. Changes nothing.

    NODES are names, ranges (gpu[01-64]) or groups; none means all. Exit 3 when something differs.
    """
    from gpuprov.drift import exit_code
    from gpuprov.lock import read_lock
    from gpuprov.report.documents import drift_document
    from gpuprov.report.words import drift_lines
    from gpuprov.survey import survey

    lock = read_lock(lock_path)
    found = survey(lock, options.select(lock, nodes, limit), forks=forks)
    if output == "json":
        options.print_json(drift_document(found))
    else:
        for line in drift_lines(found, options.fold):
            click.echo(line)
    return exit_code(found)
