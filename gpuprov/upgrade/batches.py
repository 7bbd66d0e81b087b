"""In which order nodes move, and how many at a time: a pure function of the fleet and its rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuprov.errors import InvalidInput, Refused
from gpuprov.model.nodeset import expand
from gpuprov.model.rollout import Rollout, portion

Unit = tuple[str, ...]
"""Nodes that move as one; most nodes are a unit alone."""


@dataclass(frozen=True)
class Batch:
    """Nodes that move at the same time. More than `may_fail` failures stop the run after this batch."""

    name: str
    nodes: Unit
    may_fail: int


def batches(groups: Mapping[str, Sequence[str]], rollout: Rollout) -> list[Batch]:
    """Canaries first, then batches of the sizes that `serial` says.

    A batch holds whole units: it is smaller than its size where the next unit does not fit, and larger only
    where one unit alone is.

    Args:
        groups: the nodes to move, by group, in order.

    Raises:
        Refused: only a part of nodes that move together is to move.
        InvalidInput: `together` or `canary` is not a set of nodes.
    """
    nodes = [node for hosts in groups.values() for node in hosts]
    units = _units(nodes, rollout.together)
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
    """Every node's unit, in the order of their first nodes."""
    unit_of: dict[str, Unit] = {node: (node,) for node in nodes}
    for text in together:
        members = _hosts(text)
        moving = tuple(node for node in nodes if node in members)
        if moving and len(moving) < len(members):
            rest = sorted(members.difference(moving))
            raise Refused(
                f"{text} moves as one, but {', '.join(rest)} would stay behind", do="name all of its nodes"
            )
        unit_of |= dict.fromkeys(moving, moving)
    return list(dict.fromkeys(unit_of.values()))


def _hosts(text: str) -> set[str]:
    try:
        return set(expand(text))
    except ValueError as error:
        raise InvalidInput(f"not a set of nodes: {text!r}", expected=str(error)) from None


def _canaries(
    groups: Mapping[str, Sequence[str]], units: Sequence[Unit], canary: str | list[str]
) -> list[Unit]:
    """The units that go first; where none of the named canaries is to move, one of each group."""
    if canary == "none":
        return []
    named = set().union(*map(_hosts, canary)) if isinstance(canary, list) else set()
    if chosen := [unit for unit in units if named.intersection(unit)]:
        return chosen
    first = {hosts[0] for hosts in groups.values() if hosts}
    return [unit for unit in units if first.intersection(unit)]


def _fitting(waiting: Sequence[Unit], size: int) -> list[Unit]:
    """The first units that fit into a batch together, one at least."""
    chosen = [waiting[0]]
    for unit in waiting[1:]:
        if len(_flat(chosen)) + len(unit) > size:
            break
        chosen.append(unit)
    return chosen


def _flat(units: Iterable[Unit]) -> Unit:
    return tuple(node for unit in units for node in unit)
