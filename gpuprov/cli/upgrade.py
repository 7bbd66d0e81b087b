"""`gpuprov upgrade`: canary, batches, a gate before, a way back after."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from gpuprov.upgrade.batches import Batch
    from gpuprov.upgrade.context import UpgradeContext
    from gpuprov.upgrade.gate import NodeGate

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@options.on_nodes
@click.option("--to", "new_path", type=FILE, help="the lock to move to; --lock is the one nodes have now")
@click.option("--plan", "only_plan", is_flag=True, help="show the gate and the order, and stop")
@click.option("--accept", multiple=True, metavar="CHECK", help="let this drift pass the gate; recorded")
@click.option("--because", default="", metavar="TEXT", help="why that drift is accepted; recorded")
@click.option(
    "--resume",
    metavar="[RUN]",
    is_flag=False,
    flag_value="latest",
    help="go on with a run whose controller died  [default: the latest]",
)
@options.yes_option
def command(
    chosen: options.Chosen,
    output: str,
    new_path: Path | None,
    only_plan: bool,
    accept: tuple[str, ...],
    because: str,
    resume: str | None,
    yes: bool,
) -> Exit:
    """Move a running fleet from its lock to the next one: canaries first, then batch by batch.

    Nothing moves while the gate is shut (exit 5). Every node is drained, changed, rebooted and verified; the
    first bad batch stops everything, and what failed goes back to its last good set. The rules are `rollout`
    in fleet.yml.
    """
    from gpuprov.cli.common.going import context_of, go, resumed
    from gpuprov.model.lock import read_lock
    from gpuprov.runs import state_dir

    if resume is not None:
        return go(resumed(resume, "upgrade", chosen), chosen.lock_path, output)
    if new_path is None:
        raise InvalidInput("an upgrade to what?", do="name the new lock with --to, or --resume a run")
    if accept and not because:
        raise InvalidInput(f"--accept {accept[0]} without a reason", do="add --because TEXT")
    context = context_of(chosen, chosen.lock, read_lock(new_path), state_dir(), state_dir())
    batches, gates = _gate(context, chosen.names, accept)
    opened = _tell(context, batches, gates, output if only_plan else "table")
    if only_plan or not opened:
        return Exit.OK if opened else Exit.REFUSED
    return _begin(context, chosen, batches, accept, because, yes=yes, output=output)


def _gate(
    context: UpgradeContext, names: list[str], accept: tuple[str, ...]
) -> tuple[list[Batch], list[NodeGate]]:
    from gpuprov.upgrade import hooks
    from gpuprov.upgrade.gate import look
    from gpuprov.upgrade.start import check

    batches = check(context, names)
    hooks.check(context)
    return batches, look(context, names, accept)


def _tell(context: UpgradeContext, batches: list[Batch], gates: list[NodeGate], output: str) -> bool:
    """Show the gate; returns whether it is open."""
    from datetime import UTC, datetime

    from gpuprov.upgrade.text import gate_lines, order_lines, plan_document
    from gpuprov.upgrade.window import is_open, words

    window = context.rollout.window
    window_open = is_open(window, datetime.now(UTC))
    if output == "json":
        options.print_json(plan_document(gates, batches, window_open))
    else:
        for line in [*order_lines(batches), *gate_lines(gates)]:
            options.note(line)
        if window and not window_open:
            options.note(f"shut  the window is {words(window)}")
    return window_open and not any(gate.shut for gate in gates)


def _begin(
    context: UpgradeContext,
    chosen: options.Chosen,
    batches: list[Batch],
    accept: tuple[str, ...],
    because: str,
    *,
    yes: bool,
    output: str,
) -> Exit:
    from dataclasses import replace

    from gpuprov.cli.common.going import begin, go
    from gpuprov.runs import new_run
    from gpuprov.upgrade.engine import Header
    from gpuprov.upgrade.start import who

    options.ask(f"upgrade {len(chosen.names)} nodes", yes=yes)
    run = new_run("upgrade")
    context = replace(context, folder=run, source=run)
    hold = context.rollout.on_failure == "hold"
    about = Header("forward", hold, tuple(batches), run.name, who(), accept, because)
    return go(begin(context, about), chosen.lock_path, output)
