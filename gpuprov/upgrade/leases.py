"""The leases of an upgrade: all of its nodes or none, and proved before each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpuprov.apply.lease import InOtherHands
from gpuprov.apply.leases import PATIENCE_S, Leases, Terms
from gpuprov.errors import GpuprovError, Refused
from gpuprov.model.nodeset import fold, fold_alike
from gpuprov.upgrade.context import UpgradeContext

TERMS = Terms(seconds=3600.0, resumable=True)
"""A controller that died is resumed within the hour; a resumed run need not wait for the end of its own."""


def leases_for(context: UpgradeContext) -> Leases:
    """The leases of a run, on nodes as the old lock reaches them, or as the new one does."""
    options = context.options
    locks = (context.old, context.lock)
    return Leases(locks, context.folder, forks=options.forks, password=options.become_password, terms=TERMS)


def take_all(leases: Leases, nodes: Sequence[str], narrate: Callable[[str], None]) -> None:
    """Take all nodes, or none.

    Raises:
        Refused: another run has one, or a worker of this one is still at work there; then the others are
            kept. A node that does not answer fails at its first step.
    """
    refused = _waited(leases, _refused(leases.take(nodes)), narrate)
    if not all(_is_own(error) for error in refused.values()):
        leases.release()
    if refused:
        raise _told(refused)


def hold(leases: Leases, nodes: Sequence[str], narrate: Callable[[str], None]) -> None:
    """Prove, before something is done to nodes, that they are still ours.

    Raises:
        Refused: another run took one: this controller slept until its lease was over.
    """
    if lost := _waited(leases, leases.prove(nodes), narrate):
        raise _told(lost)


def _waited(
    leases: Leases, errors: Mapping[str, GpuprovError], narrate: Callable[[str], None]
) -> Mapping[str, GpuprovError]:
    """The errors that are left once workers of this very run that were cut off are done, or long silent."""
    if not errors or not all(map(_is_own, errors.values())):
        return errors
    narrate(f"waiting for workers that were cut off and may be at work on {fold(errors)}")
    return _refused(leases.take(errors, patience_s=PATIENCE_S))


def _is_own(error: GpuprovError) -> bool:
    return isinstance(error, InOtherHands)


def _refused(errors: Mapping[str, GpuprovError]) -> dict[str, GpuprovError]:
    return {name: error for name, error in errors.items() if isinstance(error, Refused)}


def _told(errors: Mapping[str, GpuprovError]) -> Refused:
    told = fold_alike((name, str(error)) for name, error in errors.items())
    return Refused("; ".join(f"{names}: {said}" for names, said in told))
