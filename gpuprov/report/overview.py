"""A fleet on one screen: changes since the last look, then versions, drift, health and leases of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuprov.apply.lease import Lease
from gpuprov.drift.judge import NodeDrift
from gpuprov.drift.text import value
from gpuprov.files.runs import now
from gpuprov.history.changes import Change
from gpuprov.history.ledger import Event, Kind
from gpuprov.history.store import Line
from gpuprov.model.lock import Components, Lock
from gpuprov.model.nodeset import fold
from gpuprov.report.table import aligned
from gpuprov.report.text import change_lines
from gpuprov.untrusted import on_one_line

SCHEMA = "gpuprov.overview/1"
HEAD = ("NODE", "DRIVER", "CUDA", "DRIFT", "DOCTOR", "LEASE")
LOADED = "driver.loaded"
SAID: Mapping[Kind, str] = {
    "fault": "has the fault {what}",
    "gone": "has the fault {what} no more",
    "out": "was taken out of service by {run}",
    "mended": "was mended by {run}",
    "back": "is back in service",
    "rejected": "was rejected under load: {what}",
}
"""Events of the ledger in words; others are not news."""
NAMED_CHECKS = 2
"""Maximum number of differing checks that are named on a line; more are counted."""


@dataclass(frozen=True)
class Overview:
    """State of a fleet's nodes, from a survey and from this controller's history.

    Attributes:
        doctor: node → time and result of its last examination, for those that have one.
        leases: node → its lease, for those that a run holds.
        since: time of the look before; None for the first one.
        changed: what changed since then.
        last: last run that changed nodes.
        events: what happened to machines since then, from the ledger.
        out: node → the run of repair that has left it out of service.
    """

    lock: Lock
    nodes: Sequence[NodeDrift]
    doctor: Mapping[str, tuple[str, NodeDrift]]
    leases: Mapping[str, Lease]
    since: str | None
    changed: Sequence[Change]
    last: Line | None
    events: Sequence[Event] = ()
    out: Mapping[str, str] = field(default_factory=dict)


def overview_lines(seen: Overview) -> Iterator[str]:
    """Yield the changes since the last look, the sums, and a table; nodes with equal cells share a line."""
    if seen.since is None:
        yield "first look: no earlier one to compare with"
    elif seen.changed or seen.events:
        yield f"since {_minute(seen.since)}:"
        yield from (f"    {line}" for line in [*_event_lines(seen.events), *change_lines(seen.changed)])
    else:
        yield f"nothing changed since {_minute(seen.since)}"
    yield _sums(seen)
    if seen.last:
        counts = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in seen.last.counts.items() if n)
        yield f"last change: {seen.last.verb} at {_minute(seen.last.at)}, {counts} ({seen.last.id})"
    alike: dict[tuple[str, ...], list[str]] = {}
    for node in seen.nodes:
        alike.setdefault(_cells(seen, node), []).append(node.name)
    yield from aligned([HEAD, *([fold(names), *cells] for cells, names in alike.items())])


def overview_document(seen: Overview) -> dict[str, Any]:
    """Return a document with schema gpuprov.overview/1: changes and events since the last look, and the state
    of each node.
    """
    hosts = seen.lock.hosts()
    nodes = []
    for node in seen.nodes:
        examined = seen.doctor.get(node.name)
        lease = seen.leases.get(node.name)
        nodes.append(
            {
                "name": node.name,
                "status": node.status,
                "reason": node.reason,
                "differs": [each.check for each in node.drift],
                "locked": _locked_versions(hosts[node.name].components),
                "driver": _loaded(node, hosts[node.name].components.driver.version),
                "doctor": {"at": examined[0], "faults": [each.check for each in examined[1].drift]}
                if examined
                else None,
                "lease": {"run": lease.run, "holder": lease.holder, "until": lease.until.isoformat()}
                if lease
                else None,
                "out_by": seen.out.get(node.name),
            }
        )
    changed = [
        {
            "name": change.node,
            "new": [each.check for each in change.new],
            "gone": [each.check for each in change.gone],
            "status": change.now.status if change.now else None,
        }
        for change in seen.changed
    ]
    last = {"run": seen.last.id, "verb": seen.last.verb, "at": seen.last.at} if seen.last else None
    return {
        "schema": SCHEMA,
        "checked_at": now(),
        "since": seen.since,
        "changes": changed,
        "events": [
            {"name": each.node, "at": each.at, "kind": each.kind, "what": each.what, "run": each.run or None}
            for each in seen.events
        ],
        "last_change": last,
        "nodes": nodes,
    }


def _locked_versions(components: Components) -> dict[str, str]:
    """Return component → its locked version; of CUDA those of all toolkits: `13.0.2, 12.8.1`."""
    found: dict[str, str] = {}
    for name, version in components.versions():
        found[name] = f"{found[name]}, {version}" if name in found else version
    return found


def _sums(seen: Overview) -> str:
    """Return `7 of 8 nodes in sync, 1 differs, 1 with faults, 1 leased`; sums of 0 are left out."""
    total = len(seen.nodes)
    differ = sum(node.status == "drifted" for node in seen.nodes)
    silent = sum(node.reason is not None for node in seen.nodes)
    faulty = sum(bool(result.drift) for _, result in seen.doctor.values())
    parts = [f"{total - differ - silent} of {total} node{'s' * (total != 1)} in sync"]
    parts += [f"{differ} differ{'s' * (differ == 1)}"] if differ else []
    parts += [f"{silent} without an answer"] if silent else []
    parts += [f"{faulty} with faults at the last doctor"] if faulty else []
    parts += [f"{len(seen.out)} out of service"] if seen.out else []
    parts += [f"{len(seen.leases)} leased"] if seen.leases else []
    return ", ".join(parts)


def _cells(seen: Overview, node: NodeDrift) -> tuple[str, ...]:
    """Return a node's driver, CUDA toolkits, drift, health and lease as cells; `-` for what it lacks."""
    components = seen.lock.group_of(node.name).components
    driver, cuda = components.driver.version, components.cuda
    loaded = _loaded(node, driver)
    lease = seen.leases.get(node.name)
    return (
        driver if loaded in (None, driver) else f"{loaded}, lock {driver}",
        ", ".join(cuda.toolkits.values()) if cuda else "-",
        _drift(node),
        _health(seen, node.name),
        on_one_line(f"{lease.holder}, until {lease.until:%H:%M}, run {lease.run}") if lease else "-",
    )


def _loaded(node: NodeDrift, locked: str) -> str | None:
    """Return the version of the loaded driver, the locked one without a difference; None if the node did not
    answer.
    """
    if node.reason is not None:
        return None
    return next((value(each.actual) for each in node.drift if each.check == LOADED), locked)


def _drift(node: NodeDrift) -> str:
    """Return `in sync`, at most `NAMED_CHECKS` differing checks and the number of the others, or why the node
    could not be read.
    """
    if node.reason is not None:
        return f"{node.status}: {on_one_line(node.reason)}"
    checks = [each.check for each in node.drift]
    more = len(checks) - NAMED_CHECKS
    return ", ".join(checks[:NAMED_CHECKS]) + (f" and {more} more" if more > 0 else "") or "in sync"


def _health(seen: Overview, node: str) -> str:
    """Return the result of a node's last examination, and the run that has left it out of service, if any."""
    found = _doctor(seen.doctor.get(node))
    return f"out of service by {seen.out[node]}; {found}" if node in seen.out else found


def health_lines(
    names: Iterable[str], looks: Mapping[str, tuple[str, NodeDrift]], out: Mapping[str, str]
) -> Iterator[str]:
    """Yield a line for each node with faults at its last examination, or that a repair left out of service.

    Args:
        looks: node → time and result of its last examination.
        out: node → the run of repair that has left it out.
    """
    for name in names:
        at, found = looks.get(name, ("", None))
        if found is not None and found.drift:
            rules = ", ".join(dict.fromkeys(each.check for each in found.drift))
            yield on_one_line(f"{name} at the last doctor, {at[:10]}: {rules}")
        if name in out:
            yield on_one_line(f"{name} out of service by {out[name]}")


def _event_lines(events: Sequence[Event]) -> Iterator[str]:
    """Yield events of the kinds in `SAID`, equal ones of several GPUs of a node once."""
    alike = {(event.node, event.kind, event.what): event for event in events if event.kind in SAID}
    for event in alike.values():
        yield on_one_line(f"{event.node} {SAID[event.kind].format(what=event.what, run=event.run)}")


def _doctor(examined: tuple[str, NodeDrift] | None) -> str:
    """Return the result of a node's last examination with its day: the reason's status, `healthy`, or the
    number of faults; `-` without one.
    """
    if examined is None:
        return "-"
    at, result = examined
    found = f"{len(result.drift)} fault{'s' * (len(result.drift) != 1)}" if result.drift else "healthy"
    return f"{result.status if result.reason else found}, {at[:10]}"


def _minute(at: str) -> str:
    """Return a time of the history in minutes: `2026-01-31 14:25 UTC`."""
    return f"{at[:10]} {at[11:16]} UTC"
