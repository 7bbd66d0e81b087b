"""Apply under leases: nodes that another run holds, or has changed since the plan, are not changed."""

from __future__ import annotations

from collections.abc import Mapping

from gpuprov.apply.context import RunContext
from gpuprov.apply.converge import Convergence, converge
from gpuprov.apply.lease_manager import LeaseManager
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.apply.proposal import Proposal
from gpuprov.drift.judge import NodeDrift
from gpuprov.drift.survey import survey
from gpuprov.errors import GpuprovError, NodeFailed, Refused, Unreachable
from gpuprov.model.nodeset import fold_alike


def converge_exclusively(run: RunContext, leases: LeaseManager, proposal: Proposal) -> Convergence:
    """Lease the nodes that the proposal changes, survey them again, and bring them to the lock.

    Another run may have changed a node between the survey for the plan and the lease. The plan would then
    correct only a part of that change; such a node is not changed. Nodes that are left out for this or
    another reason have the error as their outcome. The leases stay taken: their `with` block returns them.

    Raises:
        GpuprovError: Ansible itself could not run.
    """
    errors = leases.take(plan.name for plan in proposal.busy)
    taken = [plan.name for plan in proposal.busy if plan.name not in errors]
    planned = {node.name: node for node in proposal.found}
    for node in survey(run.lock, taken, dispatch=run.options.dispatch):
        if error := _objection(planned[node.name], node):
            errors[node.name] = error
    _tell(run, errors)
    result = converge(run, [plan for plan in proposal.plans if plan.name not in errors])
    result.add({name: NodeOutcome.of_error(name, error) for name, error in errors.items()})
    return result


def _objection(planned: NodeDrift, now: NodeDrift) -> GpuprovError | None:
    """Return the error if a node does not answer or has new differences since its plan; else None."""
    if now.reason is not None:
        return (Unreachable if now.status == "unreachable" else NodeFailed)(now.reason)
    known = {each.check for each in planned.drift}
    new = [each.check for each in now.drift if each.check not in known]
    if not new:
        return None
    return Refused(
        f"changed since the plan was made: {', '.join(new)}",
        do="run gpuprov apply again, which makes a new plan",
    )


def _tell(run: RunContext, errors: Mapping[str, GpuprovError]) -> None:
    """Report nodes that are not changed, one line for each reason."""
    for names, said in fold_alike((name, str(error)) for name, error in errors.items()):
        run.narrate(f"{names} left alone: {said}")
