"""`gpuprov repair`: mend faulty nodes by a ladder of rungs per verdict, or keep them out of service."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options, upgrade_run
from gpuprov.errors import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuprov.history.ledger import Event
    from gpuprov.model.lock import Lock
    from gpuprov.model.rollout import Rollout
    from gpuprov.upgrade.repair.bmc import Bmc
    from gpuprov.upgrade.repair.context import RepairContext
    from gpuprov.upgrade.repair.ladder import Patient

FILE = click.Path(path_type=Path, dir_okay=False)
BMC_FILE = "bmc.yml"
LEVELS = ("none", "quick", "full")


@click.command()
@options.on_nodes
@click.option("--plan", "only_plan", is_flag=True, help="show verdicts, rungs and the limit, then stop")
@click.option(
    "--at-once",
    type=click.IntRange(1),
    help="most nodes out of service at a time  [default: rollout.serial, its first size]",
)
@click.option(
    "--accept",
    "level",
    type=click.Choice(LEVELS),
    help="load test before a node returns to service  [default: rollout.accept, or quick]",
)
@click.option(
    "--patience",
    type=click.IntRange(0, 86400),
    default=600,
    show_default=True,
    help="seconds to wait for jobs on the GPUs of a drained node",
)
@click.option(
    "--drained", is_flag=True, help="run without a drain hook; you confirm that no jobs are started"
)
@click.option(
    "--bmc",
    "bmc_path",
    type=FILE,
    help=f"file of BMCs, for power cycles  [default: {BMC_FILE} in the lock's folder]",
)
@options.resume_option
@options.yes_option
def command(
    chosen: options.Chosen,
    output: str,
    only_plan: bool,
    at_once: int | None,
    level: str | None,
    patience: int,
    drained: bool,
    bmc_path: Path | None,
    resume: str | None,
    yes: bool,
) -> Exit:
    """Mend nodes that the doctor finds faulty; nodes without a fault that this could mend are not changed.

    A node is drained; then its GPUs are reset, the node is rebooted, its power is cycled by its BMC: each
    only if the one before did not mend it, as the doctor then finds. A mended node is tested under load and
    returns to service. Another one stays out, with a bundle for the vendor's support, and so does a node
    that was repaired twice in 90 days. A job is never ended: while one uses the GPUs, the node waits, or is
    left as it was. The window and the hooks are `rollout` in fleet.yml.
    """
    from gpuprov.files.runs import run_folder
    from gpuprov.history import History
    from gpuprov.upgrade.repair import plan

    if resume is not None:
        upgrade_run.refuse_with_resume("only_plan", "at_once", "level", "patience", "drained")
        return _follow(_resumed(resume, chosen, bmc_path), output)
    path, bmcs = _bmcs(bmc_path, chosen)
    with History() as history:
        events = history.events()
    patients = _patients(chosen, events, bmcs)
    asked = _Asked.of(chosen, events, patients, at_once)
    opened = _tell(asked, output if only_plan else "table")
    if only_plan or not opened or not asked.treated:
        return asked.exit_code if opened else Exit.REFUSED
    plan.refuse_undrained(asked.rollout, asked.patients, drained=drained)
    options.ask(f"repair {asked.text}", yes=yes)
    lock, stated = _with_level(chosen.lock, level)
    context = upgrade_run.repair_context(chosen, lock, run_folder("repair"), bmcs)
    plan.begin(
        context,
        asked.patients,
        events,
        at_once=asked.at_once,
        level=stated,
        patience_s=patience,
        bmc_file=path,
    )
    return _follow(context, output)


@dataclass(frozen=True)
class _Asked:
    """Content of a repair: its nodes, and how many of them at a time."""

    patients: Mapping[str, Patient]
    rollout: Rollout
    at_once: int
    away: list[str]

    @classmethod
    def of(
        cls,
        chosen: options.Chosen,
        events: Sequence[Event],
        patients: Mapping[str, Patient],
        at_once: int | None,
    ) -> _Asked:
        """Return the content of a repair; if more nodes are silent than may be out, they count as unknown.

        Args:
            at_once: most nodes out of service; None: the first size of the rollout's batches.
        """
        from gpuprov.history.ledger import out_now
        from gpuprov.model.rollout import Rollout
        from gpuprov.upgrade.repair.plan import limit, with_silence

        rollout = chosen.lock.rollout or Rollout()
        most = limit(rollout, at_once, len(chosen.lock.hosts()))
        away = [node for node in out_now(events, str(chosen.lock_path.absolute())) if node not in patients]
        return cls(with_silence(patients, most), rollout, most, away)

    @property
    def treated(self) -> list[str]:
        """The nodes on which something would be done."""
        return [node for node, each in self.patients.items() if each.rungs or each.stays]

    @property
    def exit_code(self) -> Exit:
        """FAILED if nothing would be done although a node could not be judged, otherwise OK."""
        blind = any(each.verdict == "unknown" for each in self.patients.values())
        return Exit.FAILED if blind and not self.treated else Exit.OK

    @property
    def text(self) -> str:
        """The treated nodes, folded."""
        from gpuprov.model.nodeset import fold

        return fold(self.treated)


def _bmcs(path: Path | None, chosen: options.Chosen) -> tuple[str | None, dict[str, Bmc]]:
    """Return the file of BMCs as an absolute path, None without one, and node → its BMC.

    Raises:
        InvalidInput: the file has another form, or a stated one does not exist.
    """
    from gpuprov.upgrade.repair.bmc import read_bmcs

    usual = chosen.lock_path.absolute().parent / BMC_FILE
    found = path.absolute() if path else usual if usual.is_file() else None
    return (str(found), read_bmcs(found, chosen.lock.hosts())) if found else (None, {})


def _patients(chosen: options.Chosen, events: Sequence[Event], bmcs: Mapping[str, Bmc]) -> dict[str, Patient]:
    """Examine the selected nodes, and tell the user so; return node → its verdict and rungs."""
    from gpuprov.upgrade.repair import look, plan

    options.note(f"examining {len(chosen.names)} node{'s' * (len(chosen.names) != 1)}")
    found = look.first(chosen.lock, chosen.names, chosen.dispatch)
    return plan.with_bmcs(plan.with_history(found, events), bmcs)


def _tell(asked: _Asked, output: str) -> bool:
    """Print the plan, as JSON or as lines; return whether the window is open."""
    from datetime import UTC, datetime

    from gpuprov.report.repair import repair_plan_document, repair_plan_lines
    from gpuprov.upgrade.window import describe_window, is_open

    window = asked.rollout.window
    opened = is_open(window, datetime.now(UTC))
    if output == "json":
        options.print_json(repair_plan_document(asked.patients, asked.at_once, asked.away, opened))
    else:
        for line in repair_plan_lines(asked.patients, asked.at_once, asked.away):
            options.note(line)
        if window and not opened:
            options.note(f"shut  the window is {describe_window(window)}")
    return opened


def _with_level(lock: Lock, level: str | None) -> tuple[Lock, str | None]:
    """Return the lock with the level of the load test in its rollout, and that level; None without a test."""
    from gpuprov.model.rollout import Rollout

    rollout = lock.rollout or Rollout()
    wanted = level or rollout.accept or "quick"
    stated = None if wanted == "none" else wanted
    return lock.model_copy(update={"rollout": rollout.model_copy(update={"accept": stated})}), stated


def _resumed(name: str, chosen: options.Chosen, bmc_path: Path | None) -> RepairContext:
    """Wait until the processes of an unfinished repair have ended; return its context, with its own lock.

    Args:
        bmc_path: None means the file of BMCs with which it was begun.

    Raises:
        InvalidInput: no such run, or it has ended; or the file of BMCs is not valid.
        Refused: a process of it still runs after the wait.
    """
    from gpuprov.model.lock import fleet_beside
    from gpuprov.upgrade.context import unpack
    from gpuprov.upgrade.find import find_unfinished
    from gpuprov.upgrade.journal import read
    from gpuprov.upgrade.orphans import wait_for_orphans
    from gpuprov.upgrade.repair.header import repair_header

    folder = find_unfinished(name, "repair", fleet_beside(chosen.lock_path))
    about = repair_header(read(folder))
    lock, _ = unpack(folder)
    stated = bmc_path or (Path(about.bmc_file) if about.bmc_file else None)
    _, bmcs = _bmcs(stated, chosen) if stated else (None, {})
    context = upgrade_run.repair_context(chosen, lock, folder, bmcs)
    options.note(f"resuming {context.id}")
    wait_for_orphans(context)
    return context


def _follow(context: RepairContext, output: str) -> Exit:
    """Run until the end, and print the result; return its exit code."""
    from gpuprov.report.progress import Progress
    from gpuprov.report.repair import repair_outcome_document, repair_outcome_lines
    from gpuprov.upgrade.repair.finish import follow

    with Progress(options.note).alive() as progress:
        outcome = follow(replace(context, listen=progress.event))
    document, lines = repair_outcome_document(context.id, outcome), repair_outcome_lines(outcome)
    return upgrade_run.print_result(context.folder, output, document, lines, outcome.exit_code)
