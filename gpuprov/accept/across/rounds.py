"""Groups of nodes for a round: pure functions of names.

A group makes one communicator. In it, every node exchanges data with every other node, one pair at a time and
each direction separately, and all reduce together; so a pair is a group of two, and a group of all nodes
measures every link. Groups of one round share no node and run at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LARGEST = 64
"""Most nodes in a group: NCCL keeps buffers for every peer of a communicator."""
BASE = 4
"""Number base of the search by digits, and groups in a round of it: 64 nodes need three rounds."""


@dataclass(frozen=True)
class Group:
    """Nodes of one communicator; the first makes its id.

    Args:
        exchange: measure every link in addition to the all-reduce.
    """

    nodes: tuple[str, ...]
    exchange: bool = True


def tournament(count: int) -> list[list[tuple[int, int]]]:
    """Return steps in which each of `count` members meets each other once, at most one partner per step.

    The circle method: one place is fixed, the others rotate. The last two meet in the last step, so that
    suspects (which come last) meet the trusted node first.
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
    """Return groups of two (one of three if the count is odd) at a distance in the list; none for fewer than
    two nodes.

    Args:
        distance: half of the list when None: neighbours share a rack, and would not use the switch above it.
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
    """Return groups of all nodes, each with nodes from the whole list: as few groups of at most `LARGEST` as
    possible, and at least `parts`. A group of one node is left out.
    """
    count = max(parts, -(-len(nodes) // LARGEST))
    dealt = (tuple(nodes[start::count]) for start in range(count))
    return [Group(group) for group in dealt if len(group) > 1]


def digits(count: int) -> int:
    """Return how many digits to the base `BASE` are needed to number `count` nodes from 0."""
    needed = 1
    while BASE**needed < count:
        needed += 1
    return needed


def number_of(number: int, digit: int) -> int:
    """Return one digit of a number to the base `BASE`; digit 0 is the lowest."""
    weight: int = BASE**digit
    return number // weight % BASE


def by_digit(nodes: Sequence[str], digit: int) -> dict[int, tuple[str, ...]]:
    """Return digit → nodes whose number (place in the list, to the base `BASE`) has it."""
    found: dict[int, list[str]] = {}
    for number, node in enumerate(nodes):
        found.setdefault(number_of(number, digit), []).append(node)
    return {value: tuple(alike) for value, alike in found.items()}
