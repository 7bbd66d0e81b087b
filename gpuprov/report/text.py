"""Drift and plans as text for a terminal, with folded nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from gpuprov.apply.plan import NodePlan
from gpuprov.drift.judge import NodeDrift
from gpuprov.drift.security import SecurityNote
from gpuprov.drift.text import difference, value
from gpuprov.history.changes import Change
from gpuprov.model.lock import Lock
from gpuprov.model.nodeset import fold, fold_alike
from gpuprov.untrusted import on_one_line

if TYPE_CHECKING:
    from gpuprov.apply.proposal import Proposal
    from gpuprov.history.pace import Pace

DRIVER = "nvidia_driver"


def drift_lines(nodes: Iterable[NodeDrift]) -> Iterator[str]:
    """Yield one line for the nodes in sync, then one for each difference and each failure, nodes folded; also
    the differences of a node with a failure.
    """
    in_sync: list[str] = []
    others: list[tuple[str, str]] = []
    for node in nodes:
        if node.status == "in_sync":
            in_sync.append(node.name)
        elif node.reason is not None:
            others.append((node.name, f"{node.status}: {on_one_line(node.reason)}"))
        others += [(node.name, difference(each)) for each in node.drift]
    if in_sync:
        yield f"{fold(in_sync)} in sync"
    yield from _lines(others)


def see_doctor(nodes: Iterable[NodeDrift]) -> str | None:
    """Return a hint to the doctor for nodes whose drift the lock does not explain, or None.

    Such drift is a difference that no role corrects, or a value that could not be read. A node that a run
    holds is being changed, which explains both.
    """
    names = [
        node.name
        for node in nodes
        if not _is_held(node) and any(each.role is None or each.unread for each in node.drift)
    ]
    return (
        f"the lock does not explain this; to find the cause: gpuprov doctor {fold(names)}" if names else None
    )


def held_lines(nodes: Iterable[NodeDrift]) -> Iterator[str]:
    """Yield a line for differing nodes that a run holds now, folded."""
    held = [node.name for node in nodes if _is_held(node) and node.status != "in_sync"]
    if held:
        yield f"{fold(held)}: a run holds this now, and may be changing it; who: gpuprov status --overview"


def _is_held(node: NodeDrift) -> bool:
    """Return whether a run has leased the node, and the rest of the lease is known."""
    return node.held is not None and node.held.lease_s is not None


def note_lines(notes: Iterable[SecurityNote]) -> Iterator[str]:
    """Yield a line for each version that security bulletins concern, nodes folded."""
    yield from _lines((note.node, f"note: {on_one_line(note.text)}") for note in notes)


def change_lines(changes: Iterable[Change]) -> Iterator[str]:
    """Yield the changes between two surveys, nodes folded."""
    yield from _lines((change.node, line) for change in changes for line in _change(change))


def _lines(result: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Return a line for each different text, with the names of its nodes folded before it."""
    return (f"{names} {line}" for names, line in fold_alike(result))


def _change(change: Change) -> Iterator[str]:
    """Yield the lines of one node's change: its status if that changed, then new and corrected differences.

    Corrected ones only if the node could be read.
    """
    was, now = change.was, change.now
    if now is None:
        yield "was not read"
        return
    if now.reason is not None and (was is None or was.status != now.status):
        yield f"{now.status}: {on_one_line(now.reason)}"
    elif now.reason is None and was is not None and was.reason is not None:
        yield "answers again" + (", in sync" if now.status == "in_sync" else "")
    elif was is None and now.status == "in_sync":
        yield "in sync, not read before"
    yield from (difference(each) for each in change.new)
    if now.reason is None:
        # Drift and verify format values differently: a check that still differs is already listed above.
        still = {each.check for each in change.new}
        gone = (each for each in change.gone if each.check not in still)
        yield from (f"{each.check} no longer {value(each.actual)}" for each in gone)


def proposal_lines(lock: Lock, proposal: Proposal) -> Iterator[str]:
    """Yield the plan of an apply, trusted builders, nodes that did not answer, and the sum of all."""
    from gpuprov.history.pace import pace

    plans = proposal.plans
    yield from plan_lines(plans)
    yield from trust_lines(lock, plans)
    yield from drift_lines(proposal.unanswered)
    yield from plan_sentence(plans, pace(lock, plans) if proposal.busy else None)


def plan_lines(plans: Sequence[NodePlan]) -> Iterator[str]:
    """Yield the steps for each node with their reasons, then differences that no step corrects, then packages
    that are newer than the lock's.
    """
    alike: dict[tuple[tuple[str, ...], bool], list[NodePlan]] = defaultdict(list)
    for plan in plans:
        alike[(plan.roles, plan.reboot)].append(plan)
    for (roles, reboot), group in alike.items():
        steps = [*roles, *(["reboot"] if reboot else [])]
        yield f"{fold(plan.name for plan in group)}: {', '.join(steps) if steps else 'nothing to do'}"
        reasons: dict[str, list[str]] = defaultdict(list)
        for plan in group:
            for each in plan.because:
                reasons[f"{each.role or 'reboot'}: {difference(each)}"].append(plan.name)
            for each in plan.consequences:
                reasons[f"follows from the others: {difference(each)}"].append(plan.name)
        for reason, names in reasons.items():
            where = "" if len(names) == len(group) else f" ({fold(names)})"
            yield f"    {reason}{where}"
    cannot, way = "apply cannot fix this:", "see `gpuprov doctor`, or correct its group in fleet.yml"
    yield from _lines(
        (plan.name, f"{cannot} {difference(each)}; {way}") for plan in plans for each in plan.beyond
    )
    go_back = "to go back, gpuprov apply --allow-downgrade"
    yield from _lines((plan.name, f"has {each}: {go_back}") for plan in plans for each in plan.newer)


def plan_sentence(plans: Sequence[NodePlan], expected: Pace | None = None) -> Iterator[str]:
    """Yield one line: how many nodes change, packages, reboots, and if known, their bytes and the minutes.

    No line if nothing changes, or if the plan does not follow from differences (`apply --full`).
    """
    changing = [plan for plan in plans if plan.because and not plan.empty]
    if not changing:
        return
    packages, reboots = sum(plan.packages for plan in changing), sum(plan.reboot for plan in changing)
    size = f" ({_size(expected.download)})" if expected and expected.download else ""
    parts = [f"{_counted(packages, 'package')}{size}", _counted(reboots, "reboot")]
    parts += [_minutes(expected)] if expected else []
    yield f"in total: {len(changing)} of {len(plans)} node{'s' * (len(plans) > 1)}, {', '.join(parts)}"


def _counted(count: int, word: str) -> str:
    """Return a number and a noun: `no packages`, `1 reboot`, `12 packages`."""
    return f"{count or 'no'} {word}{'s' * (count != 1)}"


def _minutes(expected: Pace) -> str:
    """Return the expected duration as text, in minutes, at least 1; a rough one is marked as such."""
    minutes = max(1, round(expected.seconds / 60))
    basis = "" if expected.known else " (rough: no earlier apply is known)"
    return f"about {_counted(minutes, 'minute')}{basis}"


def _size(size: int) -> str:
    """Return bytes in GB with one decimal from 1 GB on, else in whole MB, at least 1."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(1, round(size / 1e6))} MB"


def trust_lines(lock: Lock, plans: Iterable[NodePlan]) -> Iterator[str]:
    """Yield lines about the builders that nodes trust, for nodes whose plan installs a driver compiled
    elsewhere.
    """
    hosts = lock.hosts()
    drivers = {plan.name: hosts[plan.name].components.driver for plan in plans if DRIVER in plan.roles}
    result = (
        (name, f"the module comes from {fold(driver.builders)} ({driver.builder_reason})")
        for name, driver in drivers.items()
        if driver.builders and driver.builders != (name,)
    )
    yield from _lines(result)
