"""Faults of a fake fleet, and the nodes that the search must find."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpuprov.accept.across.search import Search
from gpuprov.accept.across.verdicts import Verdict
from tests.unit.accept.across.fabric import Fabric, searched

Who = tuple[str, tuple[str, ...], tuple[str, ...]]


class Fault(NamedTuple):
    """A change to a fleet's links, and the nodes that the search must find."""

    make: Callable[[Fabric, list[str]], None]
    found: Callable[[list[str]], list[Who]]


def node(*places: int) -> Callable[[list[str]], list[Who]]:
    """Return the expected verdicts against the chosen nodes at these places; the first by default."""
    return lambda chosen: [("node", (chosen[place],), ()) for place in places or (0,)]


def link(chosen: list[str]) -> list[Who]:
    """Return the expected verdict against the link of the first two chosen nodes."""
    return [("link", tuple(sorted(chosen[:2])), ())]


def lost(chosen: list[str]) -> list[Who]:
    """Return the expected verdict about the first chosen node, which gives no answer."""
    return [("lost", (chosen[0],), ())]


def slow(
    factor: float, *, sends: bool = True, receives: bool = True, odd: int | None = None
) -> Callable[..., None]:
    """Return a fault that slows the links of the first chosen node by a factor: only those on which it sends
    or receives if stated, only in odd (1) or even (0) rounds if `odd` is stated.
    """

    def make(fabric: Fabric, chosen: list[str]) -> None:
        """Slow the first chosen node's sending or receiving by the factor."""
        bad = chosen[0]
        fabric.rate = lambda a, b, at: (
            factor
            if (odd is None or at % 2 == odd) and ((sends and a == bad) or (receives and b == bad))
            else 1.0
        )

    return make


def on_link(chosen: list[str], one_way: bool = False) -> Callable[[str, str, int], bool]:
    """Return a predicate: whether a measurement is on the link of the first two chosen nodes."""
    x, y = chosen[:2]
    return lambda a, b, at: (a, b) == (x, y) or (not one_way and (b, a) == (x, y))


def slow_link(fabric: Fabric, chosen: list[str]) -> None:
    """Slow the link of the first two chosen nodes, in both directions."""
    bad = on_link(chosen)
    fabric.rate = lambda a, b, at: 0.4 if bad(a, b, at) else 1.0


def slow_one_way(fabric: Fabric, chosen: list[str]) -> None:
    """Slow the link from the first to the second chosen node only."""
    bad = on_link(chosen, one_way=True)
    fabric.rate = lambda a, b, at: 0.4 if bad(a, b, at) else 1.0


def dead_link(fabric: Fabric, chosen: list[str]) -> None:
    """Have no exchange on the link of the first two chosen nodes finish."""
    fabric.dead = on_link(chosen)


def wrong_link(fabric: Fabric, chosen: list[str]) -> None:
    """Corrupt data on the link of the first two chosen nodes."""
    fabric.wrong = on_link(chosen)


def unroutable(fabric: Fabric, chosen: list[str]) -> None:
    """Have the first two chosen nodes reach each other in no group."""
    fabric.silent = lambda nodes, at: len(nodes) == 2 and set(nodes) == set(chosen[:2])
    fabric.dead = on_link(chosen)


def hangs(fabric: Fabric, chosen: list[str]) -> None:
    """Have no exchange of the first chosen node finish."""
    fabric.dead = lambda a, b, at: chosen[0] in (a, b)


def never_starts(fabric: Fabric, chosen: list[str]) -> None:
    """Have no group with the first chosen node start."""
    fabric.silent = lambda nodes, at: chosen[0] in nodes


def corrupts(fabric: Fabric, chosen: list[str]) -> None:
    """Corrupt the data that the first chosen node sends."""
    fabric.wrong = lambda a, b, at: a == chosen[0]


def late(fabric: Fabric, chosen: list[str]) -> None:
    """Delay small messages on the links of the first chosen node."""
    fabric.time = lambda a, b, at: 4.0 if chosen[0] in (a, b) else 1.0


def out_of_reach(fabric: Fabric, chosen: list[str]) -> None:
    """Have the first chosen node accept no SSH connection."""
    fabric.lost = lambda node, at: "no SSH on port 22: connection refused" if node == chosen[0] else ""


def dies_under_load(fabric: Fabric, chosen: list[str]) -> None:
    """Have the connection to the first chosen node break in round 3."""
    fabric.lost = lambda node, at: "the connection broke" if node == chosen[0] and at == 3 else ""


def two_nodes(fabric: Fabric, chosen: list[str]) -> None:
    """Slow all links of the first two chosen nodes."""
    fabric.rate = lambda a, b, at: 0.5 if {a, b} & set(chosen[:2]) else 1.0


def node_and_link(fabric: Fabric, chosen: list[str]) -> None:
    """Slow all links of the first chosen node, and the link of the next two."""
    bad = on_link(chosen[1:])
    fabric.rate = lambda a, b, at: 0.5 if chosen[0] in (a, b) or bad(a, b, at) else 1.0


def leaf_of(fabric: Fabric, name: str) -> tuple[str, ...]:
    """Return the eight nodes at the same leaf switch as a node."""
    start = fabric.names.index(name) // 8 * 8
    return tuple(fabric.names[start : start + 8])


def leaf(fabric: Fabric, chosen: list[str]) -> None:
    """Slow the links between the leaf switch of the first chosen node and all others."""
    inside = leaf_of(fabric, chosen[0])
    fabric.rate = lambda a, b, at: 0.5 if (a in inside) != (b in inside) else 1.0


def two_leaves(fabric: Fabric, chosen: list[str]) -> None:
    """Slow the links between two leaf switches."""
    one, other = (set(leaf_of(fabric, each)) for each in leaves(fabric.names, chosen))
    fabric.rate = lambda a, b, at: 0.5 if (a in one and b in other) or (a in other and b in one) else 1.0


def leaves(names: list[str], chosen: list[str]) -> tuple[str, str]:
    """Return the first nodes of two leaf switches."""
    first = names.index(chosen[0]) // 8
    second = names.index(chosen[1]) // 8
    second = second if second != first else (second + 3) % 8
    return names[8 * min(first, second)], names[8 * max(first, second)]


def crowd(fabric: Fabric, chosen: list[str]) -> None:
    """Slow groups of more than six nodes that have the first chosen node."""
    fabric.crowd = lambda nodes: 0.4 if chosen[0] in nodes and len(nodes) > 6 else 1.0


NAMES = [f"gpu{number:02}" for number in range(1, 65)]


def of_leaf(chosen: list[str]) -> list[Who]:
    """Return the expected verdict against the leaf switch of the first chosen node."""
    return [("between", leaf_of(Fabric(0), chosen[0]), ())]


def of_two_leaves(chosen: list[str]) -> list[Who]:
    """Return the expected verdict against the connection of two leaf switches."""
    one, other = leaves(NAMES, chosen)
    return [("between", leaf_of(Fabric(0), one), leaf_of(Fabric(0), other))]


FAULTS = {
    "a node at half its rate": Fault(slow(0.5), node()),
    "a node with one of eight rails down": Fault(slow(0.875), node()),
    "a node on sockets": Fault(slow(0.04), node()),
    "a node that sends slowly": Fault(slow(0.5, receives=False), node()),
    "a node that receives slowly": Fault(slow(0.5, sends=False), node()),
    "a node slow in odd rounds": Fault(slow(0.5, odd=1), node()),
    "a node slow in even rounds": Fault(slow(0.5, odd=0), node()),
    "a node whose messages are late": Fault(late, node()),
    "a node that hangs in every exchange": Fault(hangs, node()),
    "a node that never joins": Fault(never_starts, node()),
    "a node that sends wrong data": Fault(corrupts, node()),
    "a node out of reach": Fault(out_of_reach, lost),
    "a node that dies in the third round": Fault(dies_under_load, lost),
    "a node that slows only large groups": Fault(crowd, lambda chosen: [("group", (chosen[0],), ())]),
    "a slow link": Fault(slow_link, link),
    "a link slow one way": Fault(slow_one_way, link),
    "a dead link": Fault(dead_link, link),
    "a link that changes data": Fault(wrong_link, link),
    "a switch slow to all others": Fault(leaf, of_leaf),
    "two switches slow to each other": Fault(two_leaves, of_two_leaves),
    "two nodes at half their rate": Fault(two_nodes, node(0, 1)),
    "a slow node and a slow link": Fault(
        node_and_link, lambda chosen: [("node", (chosen[0],), ()), ("link", tuple(sorted(chosen[1:3])), ())]
    ),
    "two nodes that do not reach each other": Fault(unroutable, link),
}


def who(found: Iterable[Verdict]) -> set[Who]:
    """Return the keys of the bad verdicts."""
    return {each.key for each in found if each.level == "bad"}


def tried(name: str, place: int) -> tuple[Search, set[Who]]:
    """Run the search with the named fault at random places; return it and the expected result."""
    fault, fabric = FAULTS[name], Fabric(place)
    chosen = random.Random(name + str(place)).sample(fabric.names, 3)  # noqa: S311
    fault.make(fabric, chosen)
    return searched(fabric), set(fault.found(chosen))
