"""The leases of an upgrade: all of its nodes or none, and proved before each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpuprov.apply.leases import Leases, Terms
from gpuprov.errors import GpuprovError, Refused
from gpuprov.model.nodeset import fold
from gpuprov.upgrade.context import UpgradeContext

TERMS = Terms(seconds=3600.0, resumable=True)
"""A controller that died is resumed within the hour; a resumed run need not wait for the end of its own."""


def leases_for(context: UpgradeContext) -> Leases:
    """The leases of a run, on nodes as the old lock reaches them, or as the new one does."""
    options = context.options
    locks = (context.old, context.lock)
    return Leases(locks, context.folder, forks=options.forks, password=options.become_password, terms=TERMS)


def take_all(leases: Leases, nodes: Sequence[str]) -> None:
    """Take all nodes, or none.

    Raises:
        Refused: another run has one. A node that does not answer fails at its first step.
    """
    refused = {name: error for name, error in leases.take(nodes).items() if isinstance(error, Refused)}
    if refused:
        leases.release()
        raise _told(refused)


def hold(leases: Leases, nodes: Sequence[str]) -> None:
    """Prove, before something is done to nodes, that they are still ours.

    Raises:
        Refused: another run took one: this controller slept until its lease was over.
    """
    if lost := leases.prove(nodes):
        raise _told(lost)


def _told(errors: Mapping[str, GpuprovError]) -> Refused:
    alike: dict[str, list[str]] = defaultdict(list)
    for name, error in errors.items():
        alike[str(error)].append(name)
    return Refused("; ".join(f"{fold(names)}: {said}" for said, names in alike.items()))
