"""Fake fleet: the bandwidth and latency of each link between its nodes, with a fault."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpuprov.accept.across.evidence import Heard
from gpuprov.accept.across.rounds import Group, tournament
from gpuprov.accept.across.search import Search

RATE, TIME, NOISE = 48.0, 22.0, 0.015
"""Bandwidth in GB/s and latency in µs of a healthy link (one NDR port), and the spread of measurements."""


@dataclass
class Fabric:
    """Links of a fake fleet; faults change them.

    Args:
        rate, time: (sender, receiver, round) → factor on the value of a healthy link.
        dead: (sender, receiver, round) → whether the link passes no data.
        wrong: (sender, receiver, round) → whether the data arrives changed.
        lost: (node, round) → reason why the node does not answer, or "".
        silent: (nodes, round) → whether the group does not create a communicator.
        crowd: nodes of a group → factor on the bandwidth of its all-reduce.
    """

    seed: int
    names: list[str] = field(default_factory=lambda: [f"gpu{number:02}" for number in range(1, 65)])
    rate: Callable[[str, str, int], float] = lambda a, b, at: 1.0
    time: Callable[[str, str, int], float] = lambda a, b, at: 1.0
    dead: Callable[[str, str, int], bool] = lambda a, b, at: False
    wrong: Callable[[str, str, int], bool] = lambda a, b, at: False
    lost: Callable[[str, int], str] = lambda node, at: ""
    silent: Callable[[tuple[str, ...], int], bool] = lambda nodes, at: False
    crowd: Callable[[tuple[str, ...]], float] = lambda nodes: 1.0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311

    def noise(self) -> float:
        """Return a random factor near 1 for a measured value."""
        return max(0.5, self.chance.gauss(1.0, NOISE))

    def hear(self, groups: Iterable[Group], number: int) -> dict[str, Heard]:
        """Return the answers of all nodes in a round."""
        result: dict[str, Heard] = {}
        for group in groups:
            result |= self._group(group, number)
        return result

    def _group(self, group: Group, number: int) -> dict[str, Heard]:
        """Return the reports of a group's nodes in a round: measurements, or errors if a node is lost or
        silent.
        """
        gone = {node: why for node in group.nodes if (why := self.lost(node, number))}
        if gone:
            error = "ncclSend: error 6 (remote process exited or there was a network error)"
            return {
                node: Heard(lost=gone[node]) if node in gone else Heard(error=error) for node in group.nodes
            }
        if self.silent(group.nodes, number):
            return {node: Heard(error="no answer in 60 s") for node in group.nodes}
        stuck = self._stuck(group, number) if group.exchange else {}
        if not stuck and not group.exchange:
            ring = zip(group.nodes, (*group.nodes[1:], group.nodes[0]), strict=True)
            if any(self.dead(a, b, number) for a, b in ring):
                return {node: Heard(error="no answer in 60 s") for node in group.nodes}
        if stuck:
            return {node: Heard(error="no answer in 60 s", stuck=stuck.get(node)) for node in group.nodes}
        return {node: self._answer(node, group, number) for node in group.nodes}

    def _stuck(self, group: Group, number: int) -> dict[str, tuple[int, str]]:
        """Return the step and the peer that each stuck node waits for.

        A stuck node also blocks the nodes that it would meet in later steps.
        """
        found: dict[str, tuple[int, str]] = {}
        for step, pairs in enumerate(tournament(len(group.nodes))):
            for first, second in pairs:
                a, b = group.nodes[first], group.nodes[second]
                if a in found or b in found or self.dead(a, b, number) or self.dead(b, a, number):
                    found.setdefault(a, (step, b))
                    found.setdefault(b, (step, a))
        return found

    def _answer(self, node: str, group: Group, number: int) -> Heard:
        """Return a node's report of a round: rates of its links, and of the group's all-reduce."""
        peers = [peer for peer in group.nodes if peer != node] if group.exchange else []
        ring = zip(group.nodes, (*group.nodes[1:], group.nodes[0]), strict=True)
        slowest = min(self.rate(a, b, number) for a, b in ring) * self.crowd(group.nodes)
        both = {peer: max(self.time(peer, node, number), self.time(node, peer, number)) for peer in peers}
        return Heard(
            rates={peer: RATE * self.rate(peer, node, number) * self.noise() for peer in peers},
            times={peer: TIME * both[peer] * self.noise() for peer in peers},
            wrong=frozenset(peer for peer in peers if self.wrong(peer, node, number)),
            reduced=RATE * 0.95 * slowest * self.noise(),
        )  # fmt: skip


def searched(fabric: Fabric) -> Search:
    """Run a complete search over a fleet."""
    search = Search(fabric.names)
    while groups := search.next():
        together = [node for group in groups for node in group.nodes]
        assert len(together) == len(set(together))
        search.take(fabric.hear(groups, search.rounds))
    return search
