"""`gpuprov accept --share`: test the nodes whose turn it is, and return them to service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprov.cli.common import options, upgrade_run
from gpuprov.errors import Exit, GpuprovError

if TYPE_CHECKING:
    from pathlib import Path

    from gpuprov.accept.judge import Answer
    from gpuprov.accept.program import Level
    from gpuprov.upgrade.repair.context import RepairContext


def measure_share(chosen: options.Chosen, stated: str, level: Level) -> tuple[dict[str, Answer], Exit]:
    """Test the next nodes of a fleet's weekly share; return node → its measurements or its error, and the
    exit code.

    Nodes that a killed run has left drained are returned to service first. Nodes that another run or user has
    drained are left out, with a note. Without a node to test now, return {} and OK. The exit code is FAILED
    if a node could not be returned, otherwise OK.

    Raises:
        InvalidInput: the share is not a percentage, or there is no lock.
        Refused: the fleet has no drain hook.
    """
    from gpuprov.files.runs import run_folder
    from gpuprov.history import History
    from gpuprov.history.ledger import out_now
    from gpuprov.model.rollout import Rollout
    from gpuprov.upgrade.repair import share
    from gpuprov.upgrade.repair.plan import limit

    share.valid_share(stated)
    fleet = str(chosen.lock_path.absolute())
    with History() as history:
        events = [event for event in history.events() if event.fleet == fleet]
    for folder in share.unfinished(chosen.lock.fleet):
        _finish(chosen, folder)
    away = out_now(events, fleet) | share.drained_by_others()
    for node in sorted(away.keys() & set(chosen.names)):
        options.note(f"{node} left alone: {away[node]} has left it out of service")
    order, count = share.turn([name for name in chosen.names if name not in away], events, stated)
    options.note(f"{count} of {len(chosen.names)} nodes to test now, for {stated} a week")
    if not count:
        return {}, Exit.OK
    at_once = limit(chosen.lock.rollout or Rollout(), None, len(chosen.lock.hosts()))
    context = _context(chosen, run_folder(share.VERB))
    result = share.check_share(context, order, count, level, at_once)
    for node, why in result.skipped.items():
        options.note(f"{node} left alone: {why}")
    for node, why in result.stuck.items():
        options.warn(f"{node} stays out of service: {why}; {share.BY_HAND}")
    return dict(result.answers), Exit.FAILED if result.stuck else Exit.OK


def _context(chosen: options.Chosen, folder: Path) -> RepairContext:
    """Return the context of a run in a folder, whose drain gives way to jobs."""
    from gpuprov.model.rollout import Rollout
    from gpuprov.upgrade.repair import share

    rollout = share.hurried(chosen.lock.rollout or Rollout())
    return upgrade_run.repair_context(chosen, chosen.lock.model_copy(update={"rollout": rollout}), folder)


def _finish(chosen: options.Chosen, folder: Path) -> None:
    """Return to service what a killed run has left out, if its nodes are in this lock; report what fails."""
    from gpuprov.model.nodeset import fold
    from gpuprov.upgrade.repair import share

    names = share.left_out(folder)
    if not set(names) <= set(chosen.lock.hosts()):
        return
    try:
        share.finish(_context(chosen, folder))
    except GpuprovError as error:
        options.warn(f"{fold(names)}, drained by {folder.name}: {error}")
    else:
        options.note(f"{fold(names)}, drained by {folder.name}, returned to service")
