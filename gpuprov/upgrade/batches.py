"""Order of nodes and size of batches: a pure function of the fleet and its rollout rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuprov.errors import InvalidInput, Refused
from gpuprov.model.nodeset import expand
from gpuprov.model.rollout import Rollout, portion

Unit = tuple[str, ...]
"""Nodes that move together; most units have a single node."""


@dataclass(frozen=True)
class Batch:
    """Nodes that move at the same time. More than `may_fail` failures stop the run after this batch."""

    name: str
    nodes: Unit
    may_fail: int


def batches(
    groups: Mapping[str, Sequence[str]], rollout: Rollout, domains: Iterable[str] = ()
) -> list[Batch]:
    """Return the canaries as the first batch, then batches of the sizes in `serial`.

    The last size is that of all further batches; shares are of all nodes. A batch contains whole units: it is
    smaller than its size if the next unit does not fit, and larger only if its single unit is. No canary may
    fail.

    Args:
        groups: the nodes to move, by group, in order.
        domains: sets of nodes that move together in addition to the rollout's, such as NVLink domains.

    Raises:
        Refused: only some of the nodes that move together are to move.
        InvalidInput: `together` or `canary` is not a set of nodes.
    """
    nodes = [node for hosts in groups.values() for node in hosts]
    units = _units(nodes, [*rollout.together, *domains])
    canaries = _canaries(groups, units, rollout.canary)
    found = [Batch("canary", _flat(canaries), 0)] if canaries else []
    waiting = [unit for unit in units if unit not in canaries]
    sizes = [max(1, portion(share, len(nodes))) for share in rollout.serial]
    while waiting:
        number = len(found) + (0 if canaries else 1)
        size = sizes[min(number, len(sizes)) - 1]
        chosen = _fitting(waiting, size)
        waiting = waiting[len(chosen) :]
        moving = _flat(chosen)
        found.append(Batch(f"batch {number}", moving, portion(rollout.max_fail, len(moving))))
    return found


def _units(nodes: Sequence[str], together: Iterable[str]) -> list[Unit]:
    """Return the units of all nodes, in the order of their first nodes; each node is in exactly one.

    Args:
        together: sets of nodes that move together; sets with a common node are one unit.

    Raises:
        Refused: only some nodes of such a set are to move.
        InvalidInput: one is not a set of nodes.
    """
    unit_of: dict[str, Unit] = {node: (node,) for node in nodes}
    for text in together:
        members = _hosts(text)
        moving = tuple(node for node in nodes if node in members)
        if moving and len(moving) < len(members):
            rest = sorted(members.difference(moving))
            raise Refused(
                f"{text} is upgraded as one, and {', '.join(rest)} is left out", do="name all of its nodes"
            )
        joined = set(_flat(unit_of[node] for node in moving))
        unit = tuple(node for node in nodes if node in joined)
        unit_of |= dict.fromkeys(unit, unit)
    return list(dict.fromkeys(unit_of.values()))


def _hosts(text: str) -> set[str]:
    """Return the nodes of a set in the notation of `expand`.

    Raises:
        InvalidInput: it is not a set of nodes.
    """
    try:
        return set(expand(text))
    except ValueError as error:
        raise InvalidInput(f"not a set of nodes: {text!r}", expected=str(error)) from None


def _canaries(
    groups: Mapping[str, Sequence[str]], units: Sequence[Unit], canary: str | list[str]
) -> list[Unit]:
    """Return the units that move first; if no named canary is to move, one of each group.

    Nothing for `none`.
    """
    if canary == "none":
        return []
    named = set().union(*map(_hosts, canary)) if isinstance(canary, list) else set()
    if chosen := [unit for unit in units if named.intersection(unit)]:
        return chosen
    first = {hosts[0] for hosts in groups.values() if hosts}
    return [unit for unit in units if first.intersection(unit)]


def _fitting(waiting: Sequence[Unit], size: int) -> list[Unit]:
    """Return the first units that fit into one batch, at least one."""
    chosen = [waiting[0]]
    for unit in waiting[1:]:
        if len(_flat(chosen)) + len(unit) > size:
            break
        chosen.append(unit)
    return chosen


def _flat(units: Iterable[Unit]) -> Unit:
    """Return the nodes of units, in order."""
    return tuple(node for unit in units for node in unit)
