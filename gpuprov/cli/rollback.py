"""`gpuprov rollback`: back to the last good set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.errors import Exit

if TYPE_CHECKING:
    from gpuprov.upgrade.context import UpgradeContext
    from gpuprov.upgrade.engine import Header


@click.command()
@options.on_nodes
@click.option("--to", "run_name", metavar="RUN", help="back to before that upgrade  [default: the latest]")
@click.option(
    "--resume",
    metavar="[RUN]",
    is_flag=False,
    flag_value="latest",
    help="go on with a rollback whose controller died  [default: the latest]",
)
@options.yes_option
def command(chosen: options.Chosen, output: str, run_name: str | None, resume: str | None, yes: bool) -> Exit:
    """Bring nodes back to what they were before an upgrade: packages, files, units; rebooted, verified.

    Without NODES, all that the upgrade touched. In batches as `rollout` in fleet.yml says, without canaries.
    """
    from gpuprov.cli.common.going import begin, go, resumed

    if resume is not None:
        return go(resumed(resume, "rollback", chosen), chosen.lock_path, output)
    context, names = _context(chosen, run_name)
    options.ask(f"bring {len(names)} nodes back to before {context.source.name}", yes=yes)
    return go(begin(*_begun(context, names)), chosen.lock_path, output)


def _context(chosen: options.Chosen, run_name: str | None) -> tuple[UpgradeContext, list[str]]:
    """The way back from an upgrade, and the chosen nodes that it touched."""
    from gpuprov.cli.common.going import context_of
    from gpuprov.errors import InvalidInput
    from gpuprov.nodeset import fold
    from gpuprov.upgrade.context import unpack
    from gpuprov.upgrade.journal import read
    from gpuprov.upgrade.start import find_run, last_upgrade_of

    source = find_run(run_name, "upgrade") if run_name else last_upgrade_of(chosen.names)
    touched = {entry.node for entry in read(source) if entry.step == "apply"}
    names = [name for name in chosen.names if name in touched]
    if not names:
        raise InvalidInput(f"{source.name} did not touch {fold(chosen.names)}", do="name other nodes or runs")
    return context_of(chosen, *unpack(source), source, source), names


def _begun(context: UpgradeContext, names: list[str]) -> tuple[UpgradeContext, Header]:
    from dataclasses import replace

    from gpuprov.runs import new_run
    from gpuprov.upgrade.batches import batches
    from gpuprov.upgrade.engine import Header
    from gpuprov.upgrade.start import grouped, who
    from gpuprov.upgrade.text import order_lines

    rollout = context.rollout.model_copy(update={"canary": "none"})
    order = tuple(batches(grouped(context.old, names), rollout))
    for line in order_lines(order):
        options.note(line)
    about = Header("back", False, order, context.source.name, who())
    return replace(context, folder=new_run("rollback")), about
