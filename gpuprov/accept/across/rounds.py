"""Which nodes are put together in a round: pure functions of names.

A group makes one communicator. In it, every node exchanges data with every other, one pair at a time and
each direction by itself, and all reduce together; so a pair is a group of two, and a group of all nodes
measures every link. Groups of one round share no node and run at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LARGEST = 64
"""Nodes of a group at most: NCCL holds buffers for every peer that it was joined to."""
BASE = 4
"""Groups of a round that looks for a node by the digits of its number: 64 nodes need three rounds."""


@dataclass(frozen=True)
class Group:
    """Nodes of one communicator; the first makes its id.

    Args:
        exchange: also every node with every other, not the all-reduce alone.
    """

    nodes: tuple[str, ...]
    exchange: bool = True


def tournament(count: int) -> list[list[tuple[int, int]]]:
    """Steps in which each of `count` meets each other once; in a step no one is in two pairs.

    The circle method: the last one stands still, the others go round. The last two meet in the last step, so
    that those who are under suspicion (they come last) meet the trusted one first.
    """
    places = [*range(count), *([None] if count % 2 else [])]
    steps: list[list[tuple[int, int]]] = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        steps.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return sorted(steps, key=lambda step: (count - 2, count - 1) in step)


def pairs(nodes: Sequence[str], distance: int | None = None) -> list[Group]:
    """Everyone in one group of two (one of three where they are odd), so far apart in the list.

    Args:
        distance: half of the list when None: neighbours share a rack, and its switch would not be passed.
    """
    if len(nodes) < 2:
        return []
    half = len(nodes) // 2
    shift = half if distance is None else distance
    first, second = list(nodes[:half]), list(nodes[half : 2 * half])
    second = second[shift % half :] + second[: shift % half]
    found = [Group(pair) for pair in zip(first, second, strict=True)]
    if len(nodes) % 2:
        found[-1] = Group((*found[-1].nodes, nodes[-1]))
    return found


def all_together(nodes: Sequence[str], parts: int = 1) -> list[Group]:
    """All in as few groups as may be, at least `parts`; each group has nodes from the whole list."""
    count = max(parts, -(-len(nodes) // LARGEST))
    dealt = (tuple(nodes[start::count]) for start in range(count))
    return [Group(group) for group in dealt if len(group) > 1]


def digits(count: int) -> int:
    """How many digits number so many nodes from 0."""
    needed = 1
    while BASE**needed < count:
        needed += 1
    return needed


def number_of(number: int, digit: int) -> int:
    """One digit of a number, the lowest first."""
    weight: int = BASE**digit
    return number // weight % BASE


def by_digit(nodes: Sequence[str], digit: int) -> dict[int, tuple[str, ...]]:
    """The nodes whose number has the same digit, by that digit."""
    found: dict[int, list[str]] = {}
    for number, node in enumerate(nodes):
        found.setdefault(number_of(number, digit), []).append(node)
    return {value: tuple(alike) for value, alike in found.items()}
