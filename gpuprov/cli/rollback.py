"""`gpuprov rollback`: return nodes to their last good set."""

from __future__ import annotations

from dataclasses import replace

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.this_machine import local_option
from gpuprov.errors import Exit


@click.command()
@options.on_nodes
@local_option
@click.option(
    "--to", "run_name", metavar="RUN", help="return to the state before this upgrade  [default: the latest]"
)
@options.resume_option
@options.yes_option
def command(
    chosen: options.Chosen, output: str, local: bool, run_name: str | None, resume: str | None, yes: bool
) -> Exit:
    """Return nodes to their state before an upgrade (packages, files, units), reboot and verify them.

    By default all nodes that the upgrade changed, in the batches of `rollout` in fleet.yml, without canaries.
    """
    from gpuprov.cli.common import upgrade_run
    from gpuprov.files.runs import run_folder
    from gpuprov.model.nodeset import fold
    from gpuprov.report.upgrade import order_lines
    from gpuprov.upgrade.context import unpack
    from gpuprov.upgrade.find import find_upgrade
    from gpuprov.upgrade.start import begin_rollback, rollback_order

    chosen = replace(chosen, local=local)
    if resume is not None:
        upgrade_run.refuse_with_resume("run_name")
        return upgrade_run.follow(upgrade_run.resume(resume, "rollback", chosen), chosen.lock_path, output)
    source, names = find_upgrade(run_name, chosen.names, chosen.lock.fleet)
    old, new = map(chosen.placed, unpack(source))
    context = upgrade_run.upgrade_context(chosen, old, new, run_folder("rollback"), source)
    if later := _later_applies(source.name, names):
        options.note(
            f"{fold(names)}: these runs of apply came later, and what they changed is not in the former lock:"
            f" {', '.join(later)}"
        )
    options.ask(f"return {fold(names)} to the state before {source.name}", yes=yes)
    order = rollback_order(context, names)
    for line in order_lines(order):
        options.note(line)
    begin_rollback(context, order)
    return upgrade_run.follow(context, chosen.lock_path, output)


def _later_applies(source: str, names: list[str]) -> list[str]:
    """Return the ids of later runs of apply that concerned the nodes, oldest first."""
    from gpuprov.history.store import History

    with History() as history:
        lines = [line for name in names for line, _ in history.of_node(name, last=100)]
    return sorted({line.id for line in lines if line.verb == "apply" and line.id > source})
