"""`gpuprov plan`: what apply would do, where and why."""

from __future__ import annotations

import click

from gpuprov.cli.common import options
from gpuprov.errors import Exit


@click.command()
@options.on_nodes
def command(chosen: options.Chosen, output: str) -> Exit:
    """Say which roles `gpuprov apply` would run on which nodes, and which would reboot. Changes nothing.

    Exit 0 when there is nothing to do, 3 when there is.
    """
    from gpuprov.apply.plan import plan_node
    from gpuprov.drift.judge import exit_code
    from gpuprov.drift.survey import survey
    from gpuprov.report.documents import plan_document
    from gpuprov.report.text import drift_lines, plan_lines

    found = survey(chosen.lock, chosen.names, forks=chosen.forks, password=chosen.password)
    unanswered = [node for node in found if node.reason is not None]
    plans = [plan_node(node) for node in found if node.reason is None]
    if output == "json":
        options.print_json(plan_document(plans, unanswered))
    else:
        for line in [*plan_lines(plans), *drift_lines(unanswered)]:
            click.echo(line)
    return exit_code(found)
