"""The plan of a repair: verdicts of nodes, their rungs, and who may leave service."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gpuprov.errors import Refused
from gpuprov.files.runs import started_by
from gpuprov.history.ledger import Event, machine_key, out_now, repairs, sole_serials
from gpuprov.model.nodeset import fold
from gpuprov.model.rollout import Rollout, portion
from gpuprov.upgrade.context import pack
from gpuprov.upgrade.hooks import check_hooks
from gpuprov.upgrade.journal import NAME, Journal
from gpuprov.upgrade.repair.context import RepairContext
from gpuprov.upgrade.repair.header import RepairHeader
from gpuprov.upgrade.repair.ladder import Patient
from gpuprov.upgrade.repair.power import NO_BMC

REPAIRS = 2
"""Repairs after which a node that comes back stays out."""
DAYS = 90.0
"""Days in which repairs count (our choice: a quarter; a GPU that was replaced does not count)."""


def with_history(
    patients: Mapping[str, Patient], events: Sequence[Event], now: datetime | None = None
) -> dict[str, Patient]:
    """Return the patients; a node that comes back after `REPAIRS` repairs gets no rung and stays out.

    Nodes that state the same serial number are known by their names.
    """
    found = {}
    serials = sole_serials({node: each.machine for node, each in patients.items()})
    for node, stated in patients.items():
        each = replace(stated, machine=serials[node])
        count = repairs(events, machine_key(each.machine, node), each.present, DAYS, now) if each.rungs else 0
        if count >= REPAIRS:
            said = f"repaired {count} times in {DAYS:g} days, and faulty again: replace the part"
            each = replace(each, rungs=(), stays=said)
        found[node] = each
    return found


def with_silence(patients: Mapping[str, Patient], at_once: int) -> dict[str, Patient]:
    """Return the patients; if more are silent than may be out of service, they are `unknown` without a rung.

    It is then more likely that the controller's network fails than all of these nodes.
    """
    silent = [node for node, each in patients.items() if each.verdict == "silent"]
    if len(silent) <= at_once:
        return dict(patients)
    said = (
        f"{len(silent)} nodes do not answer, expected at most {at_once} at once: look at the network of the"
        f" controller, then name single nodes or give --at-once {len(silent)}"
    )
    blind = {node: Patient("unknown", faults=(*patients[node].faults, said)) for node in silent}
    return {**patients, **blind}


def with_bmcs(patients: Mapping[str, Patient], bmcs: Collection[str]) -> dict[str, Patient]:
    """Return the patients without the power cycle of nodes whose BMC is not stated.

    A node that has no other rung stays out: what could mend it is not possible from here.
    """
    found = {}
    for node, each in patients.items():
        if "power" in each.rungs and node not in bmcs:
            rungs = tuple(rung for rung in each.rungs if rung != "power")
            each = replace(each, rungs=rungs, stays=each.stays or ("" if rungs else NO_BMC))
        found[node] = each
    return found


def refuse_undrained(rollout: Rollout, patients: Mapping[str, Patient], *, drained: bool) -> None:
    """Refuse a repair of nodes that new jobs could be started on.

    Args:
        drained: the operator states that no jobs are started on them.

    Raises:
        Refused: there is no drain hook, and the nodes are not stated to be drained.
        InvalidInput: a hook of the rollout is not valid.
    """
    treated = [node for node, each in patients.items() if each.rungs or each.stays]
    if treated and rollout.hooks.drain is None and not drained:
        raise Refused(
            f"no drain hook takes {fold(treated)} out of service, and a job could start meanwhile",
            do="state rollout.hooks.drain in fleet.yml and lock, or give --drained if no jobs are started",
        )


def limit(rollout: Rollout, stated: int | None, nodes: int) -> int:
    """Return how many nodes may be out at a time: as stated, else the first size of the rollout's batches.

    Args:
        nodes: number of nodes of the fleet.
    """
    return stated if stated is not None else max(1, portion(rollout.serial[0], nodes))


def begin(
    context: RepairContext,
    patients: Mapping[str, Patient],
    events: Iterable[Event],
    *,
    at_once: int,
    level: str | None,
    patience_s: float,
    bmc_file: str | None = None,
) -> None:
    """Write folder and header of a repair, with the nodes that are out of service and not treated.

    Raises:
        InvalidInput: a hook of the rollout is not valid.
        Refused: another process has the journal open.
    """
    check_hooks(context)
    treated = {node for node, each in patients.items() if each.rungs or each.stays}
    away = [node for node in out_now(events, str(context.lock_path)) if node not in treated]
    pack(context.folder, context.old, context.lock)
    about = RepairHeader(patients, at_once, level, patience_s, started_by(), tuple(away), bmc_file)
    with Journal(context.folder / NAME) as journal:
        about.write(journal)
