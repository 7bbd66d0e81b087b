"""Verification and apply: failed checks as drift, and checks that an apply did not correct."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuprov.apply.plan import NodePlan
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.model.lock import Lock
from gpuprov.roles import Expectation
from gpuprov.untrusted import shown
from gpuprov.verify.verdict import NodeVerdict, Verdict
from gpuprov.verify.wanted import wanted


def as_drift(lock: Lock, verdict: Verdict) -> list[NodeDrift]:
    """Return each node's verification as drift: a failed check is a difference.

    A node that is unreachable or could not be judged keeps that status, and the message as its reason. A
    verification of checks that the lock does not have, as a worker can send, is an error of its node.
    """
    stated = {name: wanted(group) for name, group in lock.groups.items()}
    group_of = {host: name for name, group in lock.groups.items() for host in group.hosts}
    return [_as_drift(node, stated[group_of[node.name]]) for node in verdict.nodes]


def tried(lock: Lock, plans: Iterable[NodePlan], rebooted: Iterable[str]) -> dict[str, set[str]]:
    """Return node → the checks that its apply should have corrected: by a role that ran, or by a reboot.

    Args:
        plans: plans that ran.
        rebooted: nodes that were rebooted.
    """
    hosts, booted = lock.hosts(), set(rebooted)
    return {
        plan.name: {
            check
            for check, each in wanted(hosts[plan.name]).items()
            if (plan.name in booted if each.reboot else each.role in plan.roles)
        }
        for plan in plans
    }


def _as_drift(node: NodeVerdict, stated: Mapping[str, Expectation]) -> NodeDrift:
    """Return one node's verification as drift: a failed check is a difference.

    An error if the verification names a check that the lock does not have.

    Args:
        stated: check → its expectation.
    """
    if strange := [each.check for each in node.failed_checks if each.check not in stated]:
        seen = f"the lock has no check {shown(strange[0])} for this node, which its verification names"
        return NodeDrift(node.name, "error", reason=seen)
    found = tuple(
        Difference(
            each.check,
            each.expected,
            each.actual,
            stated[each.check].severity,
            stated[each.check].role,
            stated[each.check].reboot,
        )
        for each in node.failed_checks
    )
    if node.status in ("unreachable", "error"):
        return NodeDrift(node.name, node.status, found, node.message)
    return NodeDrift(node.name, "drifted" if found else "in_sync", found)
