"""`gpuprov plan`: show what apply would do, where and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.staleness import warn_if_stale
from gpuprov.cli.common.terminal import tell
from gpuprov.cli.common.this_machine import local_option
from gpuprov.errors import Exit


@click.command()
@options.on_nodes
@local_option
@click.option(
    "--markdown",
    type=click.Path(path_type=Path, dir_okay=False),
    help="also write the plan as Markdown to this file, for a comment in a pull request",
)
def command(chosen: options.Chosen, output: str, local: bool, markdown: Path | None) -> Exit:
    """Show which roles `gpuprov apply` would run on which nodes, and which would reboot. Changes nothing.

    Exit 0 if there is nothing to do, 3 if there is, 4 if a node is unreachable, 1 if one cannot be read.
    """
    from gpuprov.apply.context import Options
    from gpuprov.apply.proposal import propose
    from gpuprov.drift.judge import exit_code
    from gpuprov.history.verified import not_verified
    from gpuprov.model.nodeset import fold
    from gpuprov.report.documents import plan_document
    from gpuprov.report.text import proposal_lines

    chosen = replace(chosen, local=local)
    warn_if_stale(chosen.lock, chosen.lock_path)
    how = Options(chosen.dispatch)
    proposal = propose(chosen.lock, chosen.names, how)
    if output == "json":
        options.print_json(plan_document(proposal.plans, proposal.unanswered))
    else:
        for line in proposal_lines(chosen.lock, proposal):
            tell(line)
        if unknown := not_verified(chosen.lock, chosen.lock_path, proposal.in_sync):
            options.note(
                f"{fold(unknown)}: no passed verification of this lock is known; apply verifies first"
            )
    if markdown:
        from gpuprov.model.documents import write_text
        from gpuprov.report.markdown import plan_markdown

        # A link in another person's repository could lead to any file of this user.
        write_text(markdown, plan_markdown(chosen.lock, proposal), follow=False)
    return exit_code(proposal.found)
