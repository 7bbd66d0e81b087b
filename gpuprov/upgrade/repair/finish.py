"""A repair until its end, with its result in the history and in the ledger of machines."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprov.drift.judge import NodeDrift
from gpuprov.files.runs import verb_of
from gpuprov.history import History, keep
from gpuprov.history.ledger import Event, Kind, machine_key
from gpuprov.history.record import of_nodes
from gpuprov.upgrade.journal import NAME, Journal
from gpuprov.upgrade.repair.context import RepairContext
from gpuprov.upgrade.repair.engine import RepairEngine
from gpuprov.upgrade.repair.state import RUNGS, End, Progress
from gpuprov.upgrade.running import Outcome
from gpuprov.upgrade.state import Entry

_KINDS: dict[tuple[str, str], Kind] = {
    ("drain", "begun"): "out",
    ("resume", "done"): "back",
    **{(rung, "begun"): rung for rung in RUNGS},
}
"""Entries of the journal that are events of the ledger."""


def follow(context: RepairContext) -> Outcome[End]:
    """Run until the end, and record the result; an interrupted run records what has happened so far.

    Raises:
        Refused, CrewLost: as `RepairEngine.go`.
    """
    with Journal(context.folder / NAME) as journal:
        engine = RepairEngine(context, journal)
        try:
            outcome = engine.go()
        finally:
            _keep_events(context, journal.entries, engine.progress())
    nodes = [
        NodeDrift(name, "error" if reason else "in_sync", reason=reason)
        for name in outcome.ends
        for reason in [outcome.reasons.get(name)]
        if outcome.ends[name] != "left"
    ]
    run = of_nodes(context.id, verb_of(context.id), context.lock, context.lock_path, nodes)
    keep(run, context.narrate)
    return outcome


def _keep_events(context: RepairContext, entries: Sequence[Entry], known: dict[str, Progress]) -> None:
    """Add the run's events to the ledger. An error is only reported: it is not the result of the repair."""
    try:
        with History() as history:
            events = events_of(context, entries, known)
            history.record_events(events, run=context.id)
    except Exception as error:  # noqa: BLE001 - see above
        context.narrate(f"this repair is not in the ledger of machines: {error}")


def events_of(context: RepairContext, entries: Sequence[Entry], known: dict[str, Progress]) -> list[Event]:
    """Return the events of a run: of each GPU with a fault, or of the node if no GPU is named. A node that a
    rung mended has `mended` before `back`.

    A step that a killed controller began twice is one event.
    """
    found: list[Event] = []
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        kind = _KINDS.get((entry.step, entry.event))
        if entry.node not in known or kind is None or (entry.node, kind) in seen:
            continue
        seen.add((entry.node, kind))
        each = known[entry.node]
        kinds: list[Kind] = ["mended", kind] if kind == "back" and each.mended_by else [kind]
        for unit in each.patient.units or ("",):
            key = machine_key(each.patient.machine, entry.node)
            place = (entry.at, str(context.lock_path), entry.node, key, unit)
            found += [Event(*place, one, ", ".join(each.patient.rules), context.id) for one in kinds]
    return found
