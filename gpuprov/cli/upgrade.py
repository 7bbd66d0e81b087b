"""`gpuprov upgrade`: move a fleet to a new lock: gate, canaries, batches, and rollback after failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.this_machine import local_option
from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from gpuprov.upgrade.batches import Batch
    from gpuprov.upgrade.context import UpgradeContext
    from gpuprov.upgrade.gate import NodeGate

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@options.on_nodes
@local_option
@click.option("--to", "new_path", type=FILE, help="the lock to move to; --lock is the current one")
@click.option("--plan", "only_plan", is_flag=True, help="show the gate and the order, then stop")
@click.option("--accept", multiple=True, metavar="CHECK", help="accept this drift at the gate; recorded")
@click.option("--because", default="", metavar="TEXT", help="reason for accepting that drift; recorded")
@options.resume_option
@options.yes_option
def command(
    chosen: options.Chosen,
    output: str,
    local: bool,
    new_path: Path | None,
    only_plan: bool,
    accept: tuple[str, ...],
    because: str,
    resume: str | None,
    yes: bool,
) -> Exit:
    """Move a running fleet from its lock to the next one: canaries first, then batch by batch.

    Nothing changes while the gate is shut (exit 5). Every node is drained, changed, rebooted and verified.
    The first bad batch stops the upgrade, and failed nodes return to their last good set. The rules are
    `rollout` in fleet.yml.
    """
    from gpuprov.cli.common import upgrade_run
    from gpuprov.files.runs import run_folder
    from gpuprov.model.lock import read_lock
    from gpuprov.model.nodeset import fold
    from gpuprov.upgrade.gate import ask_gate
    from gpuprov.upgrade.start import begin_upgrade, upgrade_order

    chosen = replace(chosen, local=local)
    if resume is not None:
        upgrade_run.refuse_with_resume("new_path", "only_plan", "accept", "because")
        return upgrade_run.follow(upgrade_run.resume(resume, "upgrade", chosen), chosen.lock_path, output)
    if new_path is None:
        raise InvalidInput("--to is missing", do="give --to NEW.lock.yml, or --resume to continue a run")
    if accept and not because:
        raise InvalidInput(f"--accept {accept[0]} without a reason", do="add --because TEXT")
    new = chosen.placed(read_lock(new_path))
    context = upgrade_run.upgrade_context(chosen, chosen.lock, new, run_folder("upgrade"))
    order = upgrade_order(context, chosen.names)
    opened = _tell(context, order, ask_gate(context, chosen.names, accept), output if only_plan else "table")
    if only_plan and output != "json":
        _tell_sum(context, chosen.names, order)
    if only_plan or not opened:
        return Exit.OK if opened else Exit.REFUSED
    options.ask(f"upgrade {fold(chosen.names)}", yes=yes)
    begin_upgrade(context, order, accept, because)
    return upgrade_run.follow(context, chosen.lock_path, output)


def _tell_sum(context: UpgradeContext, names: list[str], order: list[Batch]) -> None:
    """Show packages, bytes, reboots and minutes of the upgrade, from the drift against the new lock."""
    from gpuprov.apply.proposal import propose
    from gpuprov.report.upgrade import upgrade_sentence

    for line in upgrade_sentence(context.lock, propose(context.lock, names, context.options).plans, order):
        options.note(line)


def _tell(context: UpgradeContext, order: list[Batch], gates: list[NodeGate], output: str) -> bool:
    """Show the order and the gate; return whether the window is open and no node shuts the gate."""
    from datetime import UTC, datetime

    from gpuprov.report.upgrade import gate_lines, order_lines, plan_document
    from gpuprov.upgrade.window import describe_window, is_open

    window = context.rollout.window
    window_open = is_open(window, datetime.now(UTC))
    if output == "json":
        options.print_json(plan_document(gates, order, window_open))
    else:
        for line in [*order_lines(order), *gate_lines(gates)]:
            options.note(line)
        if window and not window_open:
            options.note(f"shut  the window is {describe_window(window)}")
    return window_open and not any(gate.shut for gate in gates)
