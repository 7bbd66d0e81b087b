"""`gpuprov rollback`: back to the last good set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.errors import Exit

if TYPE_CHECKING:
    from gpuprov.upgrade.context import Trip
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
    trip, names = _trip(chosen, run_name)
    options.ask(f"bring {len(names)} nodes back to before {trip.source.name}", yes=yes)
    return go(begin(*_begun(trip, names)), chosen.lock_path, output)


def _trip(chosen: options.Chosen, run_name: str | None) -> tuple[Trip, list[str]]:
    """The way back from an upgrade, and the chosen nodes that it touched."""
    from gpuprov.apply.playbook import Options
    from gpuprov.errors import InvalidInput
    from gpuprov.nodeset import fold
    from gpuprov.report.progress import Progress
    from gpuprov.upgrade.context import Trip, unpack
    from gpuprov.upgrade.journal import read
    from gpuprov.upgrade.start import find_run, last_upgrade_of

    source = find_run(run_name, "upgrade") if run_name else last_upgrade_of(chosen.names)
    touched = {entry.node for entry in read(source) if entry.step == "apply"}
    names = [name for name in chosen.names if name in touched]
    if not names:
        raise InvalidInput(f"{source.name} did not touch {fold(chosen.names)}", do="name other nodes or runs")
    how = Options(chosen.forks, become_password=chosen.password)
    return Trip(source, source, *unpack(source), how, Progress(options.note).event, options.note), names


def _begun(trip: Trip, names: list[str]) -> tuple[Trip, Header]:
    from dataclasses import replace

    from gpuprov.runs import new_run
    from gpuprov.upgrade.batches import batches
    from gpuprov.upgrade.engine import Header
    from gpuprov.upgrade.start import grouped, who
    from gpuprov.upgrade.text import order_lines

    rollout = trip.rollout.model_copy(update={"canary": "none"})
    order = tuple(batches(grouped(trip.old, names), rollout))
    for line in order_lines(order):
        options.note(line)
    about = Header("back", False, order, trip.source.name, who())
    return replace(trip, run=new_run("rollback")), about
