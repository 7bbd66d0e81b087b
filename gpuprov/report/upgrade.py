"""Text and JSON of upgrades: the gate, the batches, the result of a run, its journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpuprov.apply.plan import NodePlan
from gpuprov.history.pace import Pace, pace
from gpuprov.model.lock import Lock
from gpuprov.model.nodeset import fold
from gpuprov.report.text import plan_sentence
from gpuprov.upgrade.batches import Batch
from gpuprov.upgrade.gate import NodeGate
from gpuprov.upgrade.header import Header
from gpuprov.upgrade.running import Outcome
from gpuprov.upgrade.state import End, Entry, out_of_service

MARK = {"bad": "shut", "warn": "note", "ok": "open"}
STANDS = {
    "new": "on the new lock",
    "old": "on the old lock",
    "held": "held, drained as it is",
    "stuck": "NEEDS REPAIR BY HAND",
}


def gate_lines(gates: Sequence[NodeGate]) -> Iterator[str]:
    """Yield the changes of packages, the findings, and the nodes whose gate is open, with nodes folded."""
    moving: dict[str, list[str]] = defaultdict(list)
    said: dict[tuple[str, str], list[str]] = defaultdict(list)
    for gate in gates:
        versions = sorted({f"{was or 'nothing'} → {will}" for was, will in gate.moves.values()})
        moving[f"{len(gate.moves)} packages: {', '.join(versions)}" if versions else "no packages"].append(
            gate.name
        )
        for finding in gate.findings:
            said[MARK[finding.level], f"{finding.rule}: {finding.text}"].append(gate.name)
    for line, names in moving.items():
        yield f"{fold(names)} {line}"
    for (mark, line), names in sorted(said.items()):
        yield f"{mark}  {fold(names)} {line}"
    if open_ := [gate.name for gate in gates if not gate.shut]:
        yield f"open  {fold(open_)}"


def order_lines(batches: Iterable[Batch]) -> Iterator[str]:
    """Yield a line for each batch: `canary   gpu01`, `batch 1  gpu[02-05], 1 may fail`."""
    for batch in batches:
        yield f"{batch.name:<9}{fold(batch.nodes)}" + (f", {batch.may_fail} may fail" * bool(batch.may_fail))


def upgrade_sentence(lock: Lock, plans: Sequence[NodePlan], batches: Iterable[Batch]) -> Iterator[str]:
    """Yield one line: packages, bytes, reboots and minutes of an upgrade, whose batches follow each other.

    Args:
        lock: the lock to move to.
        plans: plans against that lock, of the nodes that answered.
    """
    by_node = {plan.name: plan for plan in plans}
    parts = [pace(lock, [by_node[name] for name in batch.nodes if name in by_node]) for batch in batches]
    sizes = [part.download for part in parts]
    seconds, known = sum(part.seconds for part in parts), all(part.known for part in parts)
    download = None if None in sizes else sum(filter(None, sizes))
    yield from plan_sentence(plans, Pace(seconds, known, download))


def plan_document(gates: Sequence[NodeGate], batches: Iterable[Batch], window_open: bool) -> dict[str, Any]:
    """Return a document of the schema gpuprov.upgrade-plan/1; it is open if the window and every gate are
    open.
    """
    return {
        "schema": "gpuprov.upgrade-plan/1",
        "open": window_open and not any(gate.shut for gate in gates),
        "window_open": window_open,
        "batches": [asdict(batch) for batch in batches],
        "nodes": [gate.as_dict() for gate in gates],
    }


def outcome_lines(outcome: Outcome[Any], ends: Mapping[str, str] = STANDS) -> Iterator[str]:
    """Yield the end of every node with its reason, with equal ones on one line, then why the run was
    stopped.

    Args:
        ends: end → its text.
    """
    alike: dict[str, list[str]] = defaultdict(list)
    for node, end in outcome.ends.items():
        reason = outcome.reasons.get(node)
        alike[ends[end] + (f"  ({reason})" if reason else "")].append(node)
    for line, names in alike.items():
        yield f"{fold(names)} {line}"
    if outcome.stopped:
        yield f"stopped: {outcome.stopped}"


def outcome_document(run: str, outcome: Outcome[End]) -> dict[str, Any]:
    """Return a document of the schema gpuprov.upgrade/1."""
    nodes = [
        {"name": node, "stands": end, "reason": outcome.reasons.get(node)}
        for node, end in outcome.ends.items()
    ]
    return {"schema": "gpuprov.upgrade/1", "run": run, "nodes": nodes, "stopped": outcome.stopped}


def journal_lines(about: Header, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the steps of a run from its journal; the first entry is the start of the run."""
    yield f"{entries[0].at}  started by {about.who}: {about.course}, {len(about.nodes)} nodes"
    if about.accepted:
        yield f"{entries[0].at}  accepted {', '.join(about.accepted)}: {about.because or 'no reason given'}"
    yield from entry_lines(entries, len(about.nodes))


def entry_lines(entries: Sequence[Entry], count: int) -> Iterator[str]:
    """Yield the steps after the first entry of a journal, with nodes folded: equal steps at the same time are
    one line. The last line has the most of `count` nodes that were out of service at a time.
    """
    alike: dict[tuple[str, str, str, str], list[str]] = {}
    for entry in entries[1:]:
        said = f": {entry.data}" if entry.event == "failed" and isinstance(entry.data, str) else ""
        if entry.event == "done" and isinstance(entry.data, dict) and "seconds" in entry.data:
            said = f" in {entry.data['seconds']} s"
        nodes = alike.setdefault((entry.at, entry.step, entry.event, said), [])
        if entry.node:
            nodes.append(entry.node)
    for (at, step, event, said), names in alike.items():
        yield f"{at}  {step} {event}{f' {fold(names)}' if names else ''}{said}"
    most = max((len(out) for _, out in out_of_service(entries)), default=0)
    yield f"at most {most} of {count} nodes out of service at a time"
