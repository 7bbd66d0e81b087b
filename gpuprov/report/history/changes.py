"""What changed between two runs, node by node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuprov.drift.judge import Difference, NodeDrift


@dataclass(frozen=True, slots=True)
class Change:
    """One node's change. `was` and `now` are None where the node was not looked at."""

    node: str
    was: NodeDrift | None
    now: NodeDrift | None
    new: tuple[Difference, ...] = ()
    gone: tuple[Difference, ...] = ()


def changes(before: Sequence[NodeDrift], after: Sequence[NodeDrift]) -> Iterator[Change]:
    """Nodes whose second look differs from the first, in the second's order."""
    old, new = {node.name: node for node in before}, {node.name: node for node in after}
    for name in [*new, *(name for name in old if name not in new)]:
        was, now = old.get(name), new.get(name)
        appeared, vanished = _beyond(now, was), _beyond(was, now)
        if appeared or vanished or _standing(was) != _standing(now):
            yield Change(name, was, now, appeared, vanished)


def news(before: Sequence[NodeDrift], after: Sequence[NodeDrift]) -> list[NodeDrift]:
    """What is bad now and was not then: nodes with only the differences that are new.

    A node that came into order is no news. One that could not be asked is always named: what is new there is
    not known.
    """
    old = {node.name: node for node in before}
    found = []
    for node in after:
        fresh = _beyond(node, old.get(node.name))
        if fresh or node.reason is not None:
            found.append(replace(node, drift=fresh))
    return found


def _beyond(node: NodeDrift | None, other: NodeDrift | None) -> tuple[Difference, ...]:
    """Differences of the one that the other has not."""
    known = {_key(each) for each in other.drift} if other else set()
    return tuple(each for each in node.drift if _key(each) not in known) if node else ()


def _key(each: Difference) -> str:
    return json.dumps([each.check, each.expected, each.actual], sort_keys=True)


def _standing(node: NodeDrift | None) -> str | None:
    """The status; the wording of a failure may differ from one time to the next."""
    return node.status if node else None
