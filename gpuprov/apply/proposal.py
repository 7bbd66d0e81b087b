"""Proposal of an apply: the changes that nodes need in their current state. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from gpuprov.apply.context import Options
from gpuprov.apply.plan import RUNNABLE, NodePlan, full_plan, narrowed, plan_node
from gpuprov.apply.verified import as_drift
from gpuprov.drift.judge import NodeDrift
from gpuprov.drift.survey import survey
from gpuprov.model.lock import Lock
from gpuprov.verify import Verdict, run_verification


@dataclass(frozen=True)
class Proposal:
    """Each node's drift, and a plan for each node that answered.

    Attributes:
        found: the survey; of nodes that were verified, the failed checks.
        verdict: the verification of nodes without drift; None if there was none.
    """

    found: list[NodeDrift]
    plans: list[NodePlan]
    verdict: Verdict | None = None

    @property
    def unanswered(self) -> list[NodeDrift]:
        """Nodes that did not answer."""
        return [node for node in self.found if node.reason is not None]

    @property
    def in_sync(self) -> list[str]:
        """Nodes without drift."""
        return [node.name for node in self.found if node.status == "in_sync"]

    def steps(self, *, reboots: bool) -> dict[str, list[str]]:
        """Return role → the nodes on which it will run, in the order of the roles; at the end `reboot`.

        Args:
            reboots: whether nodes that need it are rebooted.
        """
        found = {
            role: nodes
            for role in RUNNABLE
            if (nodes := [plan.name for plan in self.busy if role in plan.roles])
        }
        rebooting = [plan.name for plan in self.busy if plan.reboot and reboots]
        return found | ({"reboot": rebooting} if rebooting else {})

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
    meanwhile: Callable[[], object] = lambda: None,
) -> Proposal:
    """Survey nodes and plan the changes that bring them to the lock.

    Args:
        roles: only these roles; empty means all.
        full: every role on every node, independent of the drift.
        meanwhile: is called once while nodes are under way, see `survey`.

    Raises:
        InvalidInput: there is no such role.
    """
    found = survey(lock, names, dispatch=options.dispatch, meanwhile=meanwhile)
    answered = [node for node in found if node.reason is None]
    plans = full_plan(node.name for node in answered) if full else [plan_node(node) for node in answered]
    return Proposal(found, narrowed(plans, roles) if roles else plans)


def with_verification(proposal: Proposal, lock: Lock, names: Collection[str], options: Options) -> Proposal:
    """Verify nodes without drift; return the proposal with the verdict, and with what failed planned too."""
    verdict = run_verification(lock, names, dispatch=options.dispatch)
    judged = {node.name: node for node in as_drift(lock, verdict)}
    plans = {name: plan_node(node) for name, node in judged.items() if node.reason is None}
    found = [judged.get(node.name, node) for node in proposal.found]
    answered = [plan for plan in proposal.plans if plan.name not in judged or plan.name in plans]
    return Proposal(found, [plans.get(plan.name, plan) for plan in answered], verdict)
