"""Changes between two runs, node by node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuprov.drift.judge import Difference, NodeDrift

LONGEST = 1 << 14
"""Maximum number of characters of a node's value or reason: each run is kept, and nodes choose them."""


@dataclass(frozen=True, slots=True)
class Change:
    """One node's change between two runs.

    Args:
        was: its result in the first run; None if the node was not in that run.
        now: its result in the second run; None if the node was not in that run.
        new: differences that only the second run has.
        gone: differences that only the first run has.
    """

    node: str
    was: NodeDrift | None
    now: NodeDrift | None
    new: tuple[Difference, ...] = ()
    gone: tuple[Difference, ...] = ()


def changes(before: Sequence[NodeDrift], after: Sequence[NodeDrift]) -> Iterator[Change]:
    """Yield the nodes whose results differ: new or gone differences, or another status.

    They are in the order of the second run; nodes of the first run only come last. A node that is in only one
    run is a change. Another reason for the same status is not.
    """
    old, new = {node.name: node for node in before}, {node.name: node for node in after}
    for name in [*new, *(name for name in old if name not in new)]:
        was, now = old.get(name), new.get(name)
        appeared, vanished = _beyond(now, was), _beyond(was, now)
        if appeared or vanished or _status(was) != _status(now):
            yield Change(name, was, now, appeared, vanished)


def news(before: Sequence[NodeDrift], after: Sequence[NodeDrift]) -> list[NodeDrift]:
    """Return nodes with differences that are new in the second run, and only those differences.

    All differences of a node that was not in the first run are new. A node without facts, that is with a
    reason, is always included: its new differences are unknown. Other nodes without new differences are not
    included.
    """
    old = {node.name: node for node in before}
    found = []
    for node in after:
        fresh = _beyond(node, old.get(node.name))
        if fresh or node.reason is not None:
            found.append(replace(node, drift=fresh))
    return found


def _beyond(node: NodeDrift | None, other: NodeDrift | None) -> tuple[Difference, ...]:
    """Return the differences of `node` that `other` lacks.

    An empty tuple without `node`, all without `other`.
    """
    known = {_key(each) for each in other.drift} if other else set()
    return tuple(each for each in node.drift if _key(each) not in known) if node else ()


def kept_value(value: Any) -> Any:
    """Return a node's value as the history keeps it: for more than `LONGEST` characters the beginning of its
    text or JSON, and their number. A kept value is returned unchanged.
    """
    written = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    if len(written) <= LONGEST:
        return value
    size = f"… ({len(written)} characters)"
    return written[: LONGEST - len(size)] + size


def _key(each: Difference) -> str:
    """Return a text that is equal for equal differences: check, expected value, and the actual one as it is
    kept, as one of the runs may be from the history.
    """
    return json.dumps([each.check, each.expected, kept_value(each.actual)], sort_keys=True)


def _status(node: NodeDrift | None) -> str | None:
    """Return the node's status, or None without a node; the wording of a failure may differ between runs."""
    return node.status if node else None
