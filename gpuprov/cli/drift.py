"""`gpuprov drift`: what differs from the lock, in seconds."""

from __future__ import annotations

import click

from gpuprov.cli import options
from gpuprov.errors import Exit


@click.command()
@options.on_nodes
def command(chosen: options.Chosen, output: str) -> Exit:
    """Ask every node what it is, and say what differs from the lock. Changes nothing.

    NODES are names, ranges (gpu[01-64]) or groups; none means all. Exit 3 when something differs.
    """
    from gpuprov.drift import exit_code
    from gpuprov.report.documents import drift_document
    from gpuprov.report.words import drift_lines
    from gpuprov.survey import survey

    found = survey(chosen.lock, chosen.names, forks=chosen.forks, password=chosen.password)
    if output == "json":
        options.print_json(drift_document(found))
    else:
        for line in drift_lines(found):
            click.echo(line)
    return exit_code(found)
