"""Start of a run: its batches, and its header on the disk before any step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuprov.catalog.platforms import tested
from gpuprov.errors import Refused
from gpuprov.files.runs import started_by
from gpuprov.model.lock import Lock
from gpuprov.model.nodeset import fold
from gpuprov.roles.imex import domains
from gpuprov.upgrade import hooks
from gpuprov.upgrade.batches import Batch, batches
from gpuprov.upgrade.context import UpgradeContext, pack
from gpuprov.upgrade.header import Header
from gpuprov.upgrade.journal import NAME, Journal


def upgrade_order(context: UpgradeContext, names: Sequence[str]) -> list[Batch]:
    """Return the batches of an upgrade, after a check of its nodes in both locks.

    Raises:
        Refused: a node is not in the new lock, would change its system, or has a system without rollback; or
            only some of the nodes that move together are named.
        InvalidInput: the rules or the hooks of the rollout are not valid.
    """
    if missing := [name for name in names if name not in context.groups]:
        raise Refused(f"the new lock has no {fold(missing)}", do="name the nodes that are in both locks")
    supported = tested()
    for name in names:
        old, new = context.groups[name]
        if (old.os, old.arch) != (new.os, new.arch):
            raise Refused(
                f"{name} would go from {old.os} {old.arch} to {new.os} {new.arch}", do="reinstall it"
            )
        if old.os not in supported:
            raise Refused(
                f"{name} runs {old.os}", expected=f"one of {', '.join(supported)}, which gpuprov can upgrade"
            )
    order = batches(_grouped(context.lock, names), context.rollout, domains(context.lock))
    hooks.check_hooks(context)
    return order


def rollback_order(context: UpgradeContext, names: Sequence[str]) -> list[Batch]:
    """Return the batches of a rollback, which needs no canaries.

    Raises:
        Refused, InvalidInput: as `batches`.
    """
    rollout = context.rollout.model_copy(update={"canary": "none"})
    return batches(_grouped(context.old, names), rollout, domains(context.old))


def _grouped(lock: Lock, names: Iterable[str]) -> dict[str, list[str]]:
    """Return group → its nodes among `names`, in the lock's order; groups without one are left out."""
    wanted = set(names)
    found = {name: [host for host in group.hosts if host in wanted] for name, group in lock.groups.items()}
    return {name: hosts for name, hosts in found.items() if hosts}


def begin_upgrade(
    context: UpgradeContext, order: Iterable[Batch], accepted: tuple[str, ...], because: str
) -> None:
    """Write folder and header of an upgrade; raises as `pack`.

    Args:
        accepted: checks of drift that the gate accepts.
        because: the reason for accepting them.
    """
    hold = context.rollout.on_failure == "hold"
    _begin(context, Header("forward", hold, tuple(order), context.id, started_by(), accepted, because))


def begin_rollback(context: UpgradeContext, order: Iterable[Batch]) -> None:
    """Write folder and header of a rollback; raises as `pack`."""
    _begin(context, Header("back", False, tuple(order), context.source.name, started_by()))


def _begin(context: UpgradeContext, header: Header) -> None:
    """Create the run's folder with copies of both locks, and a journal with the header as its first entry;
    raises as `pack`.
    """
    pack(context.folder, context.old, context.lock)
    with Journal(context.folder / NAME) as journal:
        header.write(journal)
