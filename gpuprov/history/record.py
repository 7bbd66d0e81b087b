"""Records of runs: nodes, checks, and differences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprov.drift.judge import Difference, NodeDrift, without_facts
from gpuprov.drift.majority import ASPECTS, aspects_of, majority
from gpuprov.drift.security import SecurityNote
from gpuprov.errors import GpuprovError
from gpuprov.files.runs import new_id, now
from gpuprov.model.lock import Lock
from gpuprov.probe.facts import Facts
from gpuprov.roles import expectations

if TYPE_CHECKING:
    from gpuprov.accept.judge import Acceptance
    from gpuprov.apply.converge import Convergence
    from gpuprov.doctor.judge import Diagnosis
    from gpuprov.verify.verdict import Verdict


@dataclass(frozen=True)
class Group:
    """Nodes that were judged by the same checks, and the ids of these checks."""

    nodes: tuple[str, ...]
    checks: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """Results of one run.

    Args:
        id: from `gpuprov.files.runs`.
        verb: `drift`, `apply`, `verify`, `majority`, `accept`, `doctor`, `status`, or the verb of `of_nodes`.
        at: UTC, ISO 8601.
        fleet: the lock's path, or the name of what was compared; runs with the same one are compared with
            each other.
        groups: by name; every node of `nodes` is in one.
        nodes: the result of each node.
        notes: versions of the nodes that security bulletins concern, by the bulletins of that day.
    """

    id: str
    verb: str
    at: str
    fleet: str
    groups: Mapping[str, Group]
    nodes: Sequence[NodeDrift] = field(default_factory=tuple)
    notes: Sequence[SecurityNote] = ()

    def checks_by_node(self) -> dict[str, tuple[str, ...]]:
        """Return node → the checks of its group, which judged it; for the nodes of all groups."""
        return {name: group.checks for group in self.groups.values() for name in group.nodes}


def of_survey(
    lock: Lock,
    path: Path,
    nodes: Sequence[NodeDrift],
    verb: str = "drift",
    notes: Sequence[SecurityNote] = (),
) -> Run:
    """Return the run of a verb that only surveyed nodes, with a new id and the current time.

    Args:
        path: file of the lock; its absolute path becomes `fleet`.
        notes: versions of the nodes that security bulletins concern.
    """
    return Run(new_id(verb), verb, now(), str(path.absolute()), _groups(lock, nodes), nodes, notes)


def of_majority(
    groups: Mapping[str, str], answers: Iterable[tuple[str, Facts | GpuprovError]], fleet: str
) -> Run:
    """Return the run of a comparison of nodes with the majority of their group.

    A node without facts keeps its error, and takes no part in the comparison. The run has a new id and the
    current time; nodes are in the order of `groups`.

    Args:
        groups: node → its group.
        answers: each node with its facts, or the error; only what is compared is kept of each.
        fleet: name of the fleet for the title `majority of FLEET`; may be empty.
    """
    read = {name: aspects_of(name, answer) for name, answer in answers}
    members: defaultdict[str, list[str]] = defaultdict(list)
    for name, group in groups.items():
        members[group].append(name)
    found = {
        node.name: node
        for names in members.values()
        for node in majority({name: read[name] for name in names})
    }
    kept = {group: Group(tuple(names), tuple(ASPECTS)) for group, names in members.items()}
    nodes = [found[name] for name in groups]
    return Run(new_id("majority"), "majority", now(), f"majority of {fleet}".strip(), kept, nodes)


def of_apply(name: str, lock: Lock, path: Path, unanswered: Iterable[NodeDrift], result: Convergence) -> Run:
    """Return the run of an apply, at the current time: the differences that remain on each node.

    A failed node has its error in their place: status `unreachable` if only the connection failed, otherwise
    `error`.

    Args:
        name: id of the run.
        path: file of the lock; its absolute path becomes `fleet`.
        unanswered: nodes without facts before the apply.
        result: differences and outcomes of the other nodes.
    """
    nodes = {node.name: node for node in unanswered} | result.drift
    for node, outcome in result.outcomes.items():
        if not outcome.ok:
            said = str(outcome.failed[0].get("msg")) if outcome.failed else outcome.unreachable
            lost = outcome.unreachable and not outcome.failed
            status = NodeDrift(node, "unreachable" if lost else "error", reason=outcome.refused or said)
            nodes[node] = status
    kept = list(nodes.values())
    return Run(name, "apply", now(), str(path.absolute()), _groups(lock, kept), kept)


def of_nodes(name: str, verb: str, lock: Lock, path: Path, nodes: Sequence[NodeDrift]) -> Run:
    """Return a run whose differences are specific to its verb, such as an upgrade, at the current time.

    Args:
        name: id of the run.
        path: file of the lock; its absolute path becomes `fleet`.
    """
    return Run(name, verb, now(), str(path.absolute()), _groups(lock, nodes), nodes)


def of_acceptance(name: str, judged: Sequence[Acceptance], fleet: str) -> Run:
    """Return the run of an acceptance as drift, at the current time: a fault under load is a difference.

    The checks of a node are its own measurements, and the rules of the faults found on any node.

    Args:
        name: id of the run.
    """
    nodes = [_accepted(each) for each in judged]
    measured = {each.node: {f"{rate.measure}.slow" for rate in each.rates} for each in judged}
    rules = {fault.check for node in nodes for fault in node.drift} - set().union(*measured.values())
    return _of_faults(name, "accept", fleet, nodes, {node: own | rules for node, own in measured.items()})


def _accepted(each: Acceptance) -> NodeDrift:
    """Return a node's acceptance as drift; without a result, its error."""
    if each.failure is not None:
        return without_facts(each.node, each.failure)
    found = tuple(
        Difference(fault.rule, "no fault under load", fault.text, "error", None, False)
        for fault in each.faults
    )
    return NodeDrift(each.node, "drifted" if found else "in_sync", found)


def of_diagnoses(found: Sequence[Diagnosis], fleet: str) -> Run:
    """Return the run of doctor as drift, with a new id and the current time: a fault is a difference.

    Risks and hints are left out, as they do not count for the doctor's verdict. The checks of a machine are
    the rules that could judge it.
    """
    from gpuprov.doctor.fault import RULES

    nodes = [_diagnosed(each) for each in found]
    judged = {each.host: set(RULES).difference(rule for rule, _ in each.unknown) for each in found}
    return _of_faults(new_id("doctor"), "doctor", fleet, nodes, judged)


def _of_faults(
    name: str, verb: str, fleet: str, nodes: list[NodeDrift], checks: Mapping[str, set[str]]
) -> Run:
    """Return the run of now with a group for each set of checks: what one node was judged by shows nothing of
    another.

    Args:
        checks: node → its checks, besides those of its faults.
    """
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in nodes:
        own = checks[node.name] | {fault.check for fault in node.drift}
        alike[tuple(sorted(own))].append(node.name)
    groups = {
        "all" if number == 1 else f"all {number}": Group(tuple(names), judged)
        for number, (judged, names) in enumerate(alike.items(), 1)
    }
    return Run(name, verb, now(), fleet, groups, nodes)


def _diagnosed(each: Diagnosis) -> NodeDrift:
    """Return a machine's diagnosis as drift, without risks and hints; without an examination, its error."""
    if each.failure is not None:
        return without_facts(each.host, each.failure)
    faults = tuple(
        Difference(fault.rule, "no fault", fault.text, "error", None, False)
        for fault in each.faults
        if fault.severity in ("broken", "degraded")
    )
    return NodeDrift(each.host, "drifted" if faults else "in_sync", faults)


def of_verdict(lock: Lock, path: Path, verdict: Verdict) -> Run:
    """Return the run of a verification as drift, with a new id and the verdict's time.

    A failed check is a difference.

    Args:
        path: file of the lock; its absolute path becomes `fleet`.
    """
    from gpuprov.apply.verified import as_drift
    from gpuprov.verify.wanted import wanted

    nodes = as_drift(lock, verdict)
    groups = {
        name: Group(group.nodes, tuple(wanted(lock.groups[name])))
        for name, group in _groups(lock, nodes).items()
    }
    return Run(new_id("verify"), "verify", verdict.checked_at, str(path.absolute()), groups, nodes)


def _groups(lock: Lock, nodes: Iterable[NodeDrift]) -> dict[str, Group]:
    """Return the lock's groups, limited to the nodes of the run; a group without any of them is left out."""
    seen = {node.name for node in nodes}
    groups = {
        name: Group(
            tuple(host for host in group.hosts if host in seen),
            tuple(each.check for each in expectations(group)),
        )
        for name, group in lock.groups.items()
    }
    return {name: group for name, group in groups.items() if group.nodes}
