"""The ledger of machines: what happened to a node or a GPU, by serial number, under any host name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gpuprov.doctor.judge import Diagnosis

Kind = Literal[
    "fault", "gone", "reset", "reboot", "power", "out", "back", "mended", "accepted", "rejected", "tried"
]
"""A fault that appeared or is gone; a rung of a repair; out of service, back; a repair that helped; a test,
and one without a result.
"""
BY_NAME = "name:"
"""Beginning of the key of a node whose firmware states no serial number."""
Key = tuple[str, bool]
"""Key of a node or a GPU, and whether it is a GPU."""
EVENTS = 256
"""Maximum number of events of one node that an examination adds: the ledger is kept for ever, and is read
whole. Of more, such as from GPUs with another serial number each time, the others follow with the next ones.
"""
COUNTED: tuple[Kind, ...] = ("fault", "reset", "reboot", "power", "mended", "rejected")


@dataclass(frozen=True)
class Event:
    """One event of a machine.

    Attributes:
        at: UTC, ISO 8601.
        node: name of the node at that time.
        machine: serial number of the node, or `name:NODE`.
        unit: serial number of the GPU; empty if it concerns the node.
        what: rule of a fault; otherwise empty, or a reason.
        run: id of the run; empty without one.
    """

    at: str
    fleet: str
    node: str
    machine: str
    unit: str
    kind: Kind
    what: str = ""
    run: str = ""


@dataclass
class Offender:
    """A node or a GPU with the events since a time.

    Attributes:
        key: serial number, or `name:NODE`.
        is_gpu: whether it is a GPU.
        nodes: names under which it was seen, the last one at the end.
        counts: kind of event → number.
        out_s: seconds out of service by repairs, until now if it is still out.
        is_out: whether it is out of service now.
        rules: rule → number of faults.
    """

    key: str
    is_gpu: bool
    nodes: list[str] = field(default_factory=list)
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    out_s: float = 0.0
    is_out: bool = False
    rules: dict[str, int] = field(default_factory=dict)


def machine_key(serial: str, node: str) -> str:
    """Return the key of a node: its serial number, or its name if it has none."""
    return serial or BY_NAME + node


def sole_serials(stated: Mapping[str, str]) -> dict[str, str]:
    """Return node → serial number; empty for those that state the same one: it identifies none of them.

    A node can state the number of another machine, and some boards have the same one.
    """
    count = Counter(stated.values())
    return {node: serial if count[serial] == 1 else "" for node, serial in stated.items()}


def of_diagnosis(found: Diagnosis, fleet: str, at: str, known: Iterable[Event], run: str = "") -> list[Event]:
    """Return the faults that appeared on a node, and those that are gone, at most `EVENTS`. A diagnosis
    without examination, or with a rule that could not judge, does not end a fault, nor does one under another
    name.

    Args:
        known: events of the node's machine, in the order in which they were recorded.
    """
    from gpuprov.doctor.units import concerned, gpu_serial

    if found.failure is not None:
        return []
    machine, known = machine_key(found.machine, found.host), list(known)
    before = standing(known, machine)
    own = standing((event for event in known if event.node == found.host), machine)
    now = {
        (unit, fault.rule)
        for fault in found.faults
        if fault.severity in ("broken", "degraded")
        for unit in [gpu_serial(gpu) for gpu in concerned(fault, found.gpus)] or [""]
    }
    blind = {rule for rule, _ in found.unknown}
    new: list[tuple[str, str, Kind]] = [
        (*each, "gone") for each in sorted(own & before - now) if each[1] not in blind
    ]
    new += [(*each, "fault") for each in sorted(now - before)]
    return [Event(at, fleet, found.host, machine, unit, kind, rule, run) for unit, rule, kind in new[:EVENTS]]


def standing(events: Iterable[Event], machine: str) -> set[tuple[str, str]]:
    """Return GPU and rule of a node's faults that have appeared and are not gone.

    Args:
        events: in the order in which they were recorded.
    """
    found = set[tuple[str, str]]()
    for event in events:
        if event.machine == machine and event.kind in ("fault", "gone"):
            (found.add if event.kind == "fault" else found.discard)((event.unit, event.what))
    return found


def worst(events: Iterable[Event], *, since: str = "", now: datetime | None = None) -> list[Offender]:
    """Return nodes and GPUs with faults or repairs since a time, the one that was out for longest first.

    A repair of a GPU counts for the GPU and for its node.

    Args:
        events: in the order in which they were recorded.
        since: UTC, ISO 8601; by default everything counts.
    """
    found: dict[Key, Offender] = {}
    left: dict[Key, tuple[str, str]] = {}
    for event in events:
        if event.kind == "back":
            _return(found, left, event, since)
        for key in [(event.machine, False), *([(event.unit, True)] if event.unit else [])]:
            _remember(found.setdefault(key, Offender(*key)), event, since)
            if event.kind == "out":
                left.setdefault(key, (event.at, event.machine))
    end = (now or datetime.now(UTC)).isoformat()
    for key, (at, _) in left.items():
        found[key].is_out = True
        found[key].out_s += _between(max(at, since), end)
    guilty = [each for each in found.values() if any(each.counts.values()) or each.out_s]
    return sorted(guilty, key=lambda each: (-each.out_s, -sum(each.counts.values()), each.is_gpu, each.key))


def _return(
    found: Mapping[Key, Offender], left: dict[Key, tuple[str, str]], event: Event, since: str
) -> None:
    """Add the time out of service to a node that is back, and to all of its GPUs that went out with it."""
    for key in [key for key, (_, machine) in left.items() if machine == event.machine]:
        at, _ = left.pop(key)
        found[key].out_s += _between(max(at, since), event.at)


def _remember(each: Offender, event: Event, since: str) -> None:
    """Add one event to an offender; one from before `since` only adds the node's name."""
    if event.node in each.nodes:
        each.nodes.remove(event.node)
    each.nodes.append(event.node)
    if event.at < since:
        return
    if event.kind in each.counts:
        each.counts[event.kind] += 1
    if event.kind == "fault":
        each.rules[event.what] = each.rules.get(event.what, 0) + 1


def repairs(
    events: Iterable[Event], machine: str, present: Sequence[str], days: float, now: datetime | None = None
) -> int:
    """Return how often a repair mended a node in the last days; not those of GPUs that it no longer has."""
    since = ((now or datetime.now(UTC)) - timedelta(days=days)).isoformat()
    runs: dict[str, bool] = {}
    for event in events:
        if event.machine == machine and event.kind == "mended" and event.at >= since:
            runs[event.run] = runs.get(event.run, False) or not event.unit or event.unit in present
    return sum(runs.values())


def out_now(events: Iterable[Event], fleet: str) -> dict[str, str]:
    """Return the nodes of a fleet that repairs have left out of service → the run."""
    found: dict[str, str] = {}
    for event in events:
        if event.fleet == fleet and event.kind == "out":
            found[event.node] = event.run
        elif event.fleet == fleet and event.kind == "back":
            found.pop(event.node, None)
    return found


def last_machine(events: Iterable[Event]) -> Mapping[str, str]:
    """Return node → its key in its last event."""
    return {event.node: event.machine for event in events}


def _between(start: str, end: str) -> float:
    """Return the seconds between two times, at least 0."""
    return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())
