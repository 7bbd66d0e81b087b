"""Proposal of an apply: the changes that nodes need in their current state. Nothing is changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gpuprov.apply.context import Options
from gpuprov.apply.plan import NodePlan, full_plan, narrowed, plan_node
from gpuprov.drift.judge import NodeDrift
from gpuprov.drift.survey import survey
from gpuprov.model.lock import Lock


@dataclass(frozen=True)
class Proposal:
    """Each node's drift, and a plan for each node that answered."""

    found: list[NodeDrift]
    plans: list[NodePlan]

    @property
    def unanswered(self) -> list[NodeDrift]:
        """Nodes that did not answer."""
        return [node for node in self.found if node.reason is not None]

    @property
    def busy(self) -> list[NodePlan]:
        """Plans that are not empty."""
        return [plan for plan in self.plans if not plan.empty]


def propose(
    lock: Lock,
    names: Iterable[str],
    options: Options,
    *,
    roles: Collection[str] = (),
    full: bool = False,
) -> Proposal:
    """Survey nodes and plan the changes that bring them to the lock.

    Args:
        roles: only these roles; empty means all.
        full: every role on every node, independent of the drift.

    Raises:
        InvalidInput: there is no such role.
    """
    found = survey(lock, names, dispatch=options.dispatch)
    answered = [node for node in found if node.reason is None]
    plans = full_plan(node.name for node in answered) if full else [plan_node(node) for node in answered]
    return Proposal(found, narrowed(plans, roles) if roles else plans)
