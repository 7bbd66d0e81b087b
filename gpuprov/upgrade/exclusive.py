"""Leases of an upgrade: at its begin on all of its nodes or on none, confirmed before each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpuprov.apply.lease import HeldByWorker
from gpuprov.apply.lease_manager import PATIENCE_S, LeaseManager, Terms
from gpuprov.errors import GpuprovError, Refused
from gpuprov.model.nodeset import fold, fold_alike
from gpuprov.upgrade.context import UpgradeContext

TERMS = Terms(seconds=3600.0, resumable=True)
"""Leases of one hour, to resume a run after its controller died; it need not wait for its own to expire."""


def leases_for(context: UpgradeContext) -> LeaseManager:
    """Return the leases of a run; nodes are reached as in the old lock, or else as in the new one."""
    locks = (context.old, context.lock)
    return LeaseManager(locks, context.folder, dispatch=context.options.dispatch, terms=TERMS)


def take_all(leases: LeaseManager, nodes: Sequence[str], narrate: Callable[[str], None]) -> None:
    """Take the leases of all nodes, or of none. A node that does not answer fails at its first step.

    Raises:
        Refused: another run holds a node, or a worker of this run is still at work on one; in the second case
            the other leases are kept.
    """
    refused = _waited(leases, _refused(leases.take(nodes)), narrate)
    if not all(_is_own(error) for error in refused.values()):
        leases.release()
    if refused:
        raise refusal(refused)


def lost(
    leases: LeaseManager, nodes: Sequence[str], narrate: Callable[[str], None]
) -> Mapping[str, GpuprovError]:
    """Return node → the error, before a step, for the nodes that this run does not hold, or no longer; wait
    for its own workers on them.

    Another run took such a node, because this controller was suspended until its lease expired; or the node
    states that.
    """
    return _waited(leases, leases.prove(nodes), narrate)


def _waited(
    leases: LeaseManager, errors: Mapping[str, GpuprovError], narrate: Callable[[str], None]
) -> Mapping[str, GpuprovError]:
    """Return the errors that remain after interrupted workers of this run have ended, or after `PATIENCE_S`;
    refusals only. The wait is narrated.

    If there are errors of other causes too, return all at once.
    """
    if not errors or not all(map(_is_own, errors.values())):
        return errors
    narrate(f"waiting for workers that lost their connection and may still change {fold(errors)}")
    return _refused(leases.take(errors, patience_s=PATIENCE_S))


def _is_own(error: GpuprovError) -> bool:
    """Return whether a node is refused because a worker of this run holds it."""
    return isinstance(error, HeldByWorker)


def _refused(errors: Mapping[str, GpuprovError]) -> dict[str, GpuprovError]:
    """Return the errors that are refusals."""
    return {name: error for name, error in errors.items() if isinstance(error, Refused)}


def refusal(errors: Mapping[str, GpuprovError]) -> Refused:
    """Return one refusal with all errors; nodes with the same error are listed together."""
    result = fold_alike((name, str(error)) for name, error in errors.items())
    return Refused("; ".join(f"{names}: {said}" for names, said in result))
