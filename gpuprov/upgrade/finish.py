"""A run until its end, with its result in the lock file and in the history."""

from __future__ import annotations

from pathlib import Path

from gpuprov.drift.judge import NodeDrift
from gpuprov.files.runs import verb_of
from gpuprov.history import keep
from gpuprov.history.record import of_nodes
from gpuprov.model.here import as_stated
from gpuprov.model.lock import read_lock, write_lock
from gpuprov.upgrade.context import UpgradeContext
from gpuprov.upgrade.engine import Engine
from gpuprov.upgrade.journal import NAME, Journal
from gpuprov.upgrade.running import Outcome
from gpuprov.upgrade.state import End


def follow(context: UpgradeContext, lock_path: Path) -> Outcome[End]:
    """Run until the end; if every node of the lock has moved, replace the lock file by the lock they are on.

    Raises:
        Refused: as `Engine.go`.
    """
    with Journal(context.folder / NAME) as journal:
        outcome = Engine(context, journal).go()
    _adopt(context, outcome, lock_path)
    _record(context, outcome, lock_path)
    return outcome


def _adopt(context: UpgradeContext, outcome: Outcome[End], lock_path: Path) -> None:
    """Replace the lock file, and report this, if all nodes of the new lock are on it, or all of the old one
    on that; not if the run ended early; raises as `read_lock`.
    """
    for end, lock in (("new", context.lock), ("old", context.old)):
        everywhere = all(outcome.ends.get(node) == end for node in lock.hosts())
        if everywhere and not outcome.stopped:
            known = read_lock(lock_path) if lock_path.exists() else lock
            write_lock(as_stated(lock, known), lock_path)
            context.narrate(
                f"every node has the {end} lock's versions: {lock_path} now has that lock; commit it"
            )


def _record(context: UpgradeContext, outcome: Outcome[End], lock_path: Path) -> None:
    """Add the run to the history: nodes with a failure as errors, others, which were verified, as in sync."""
    nodes = [
        NodeDrift(name, "error" if reason else "in_sync", reason=reason)
        for name in outcome.ends
        for reason in [outcome.reasons.get(name)]
    ]
    run = of_nodes(context.id, verb_of(context.id), context.lock, lock_path, nodes)
    keep(run, context.narrate)
