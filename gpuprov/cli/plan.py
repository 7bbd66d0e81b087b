"""`gpuprov plan`: what apply would do, where and why."""

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
    """Say which roles `gpuprov apply` would run on which nodes, and which would reboot. Changes nothing.

    Exit 0 when there is nothing to do, 3 when there is.
    """
    from gpuprov.drift import exit_code
    from gpuprov.lock import read_lock
    from gpuprov.plan import plan_node
    from gpuprov.report.documents import plan_document
    from gpuprov.report.words import drift_lines, plan_lines
    from gpuprov.survey import survey

    lock = read_lock(lock_path)
    found = survey(lock, options.select(lock, nodes, limit), forks=forks)
    unanswered = [node for node in found if node.reason is not None]
    plans = [plan_node(node) for node in found if node.reason is None]
    if output == "json":
        options.print_json(plan_document(plans, unanswered))
    else:
        for line in [*plan_lines(plans, options.fold), *drift_lines(unanswered, options.fold)]:
            click.echo(line)
    return exit_code(found)
