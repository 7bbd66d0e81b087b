"""Search for the node that slows a large all-reduce although its pairs pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuprov.accept.across.rounds import Group, by_digit, digits, number_of
from gpuprov.accept.across.verdicts import Verdict

TOGETHER = 0.75
"""Least bandwidth of an all-reduce of all nodes, as a share of the pairs' bandwidth."""
APART = 0.85
"""Least bandwidth of a group, as a share of the best group of the same round."""
FEWEST = 8
"""Smallest number of nodes to search; among fewer, pairs and one round of all are enough."""


class Crowd:
    """Search by all-reduces: of all nodes, of nodes that share a digit, then of both halves of the others,
    each once with the suspect and once without.

    A node is blamed only if it slows both halves: one of the others can slow, or say that it slows, any group
    that it shares with the suspect, but is in one half only.

    Args:
        nodes: nodes without a fault in pairs.
        usual: bus bandwidth of pairs in GB/s.
        whole: bus bandwidth of all nodes together in GB/s; None where it was not measured.

    Attributes:
        verdict: the fault that the search found; None before its end, and if it found none.
    """

    def __init__(self, nodes: Sequence[str], usual: float, whole: float | None = None) -> None:
        self.nodes, self.usual, self.whole = list(nodes), usual, whole
        self.verdict: Verdict | None = None
        self._slow: list[set[int]] = []
        self._suspect: str | None = None
        self._halves: list[bool] = []
        """For each examined half, whether the suspect slows it."""
        self._over = len(nodes) < FEWEST or self._sound()

    def next(self) -> list[Group]:
        """Return the groups of the next round; an empty list ends the search.

        First all nodes, then groups that share a digit of their number, then the only suspect with and
        without others.

        Unless exactly one suspect is left, the search ends without a node.
        """
        if self._over:
            return []
        if self.whole is None:
            return [Group(tuple(self.nodes), exchange=False)]
        if len(self._slow) < digits(len(self.nodes)):
            return [Group(nodes, exchange=False) for nodes in self._digits().values() if len(nodes) > 1]
        suspects = [node for number, node in enumerate(self.nodes) if self._matches(number)]
        if len(suspects) == 1:
            self._suspect = suspects[0]
            return [Group(nodes, exchange=False) for nodes in self._trial()]
        self._conclude(None)
        return []

    def take(self, reduced: Mapping[Group, float]) -> None:
        """Process the last round's bandwidths in GB/s by group; 0 means that the group did not finish."""
        if self._suspect is not None:
            self._halves.append(self._is_slowed(reduced))
            if not all(self._halves) or len(self._halves) > 1:
                self._conclude(self._suspect if all(self._halves) else None)
        elif self.whole is None:
            self.whole = min(reduced.values(), default=0.0)
        else:
            self._slow.append(self._slow_digits(reduced))
        self._over = self._over or self._sound()

    def _trial(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return a half of the other nodes with the suspect, and the other half: another one each time."""
        others = [node for node in self.nodes if node != self._suspect]
        halves = tuple(others[0::2]), tuple(others[1::2])
        tried = len(self._halves)
        return (*halves[tried], str(self._suspect)), halves[1 - tried]

    def _is_slowed(self, reduced: Mapping[Group, float]) -> bool:
        """Return whether the half with the suspect reaches less than `APART` of the other one's bandwidth,
        and the other at least `TOGETHER` of a usual pair's.
        """
        slowed, sound = (reduced.get(Group(nodes, exchange=False), 0.0) for nodes in self._trial())
        return sound >= TOGETHER * self.usual and slowed < APART * sound

    def end(self) -> None:
        """End the search without a further round: a group that is slow has a verdict in any case."""
        if not self._over:
            self._conclude(None)

    def _slow_digits(self, reduced: Mapping[Group, float]) -> set[int]:
        """Return the digits of slow groups; if no measured group is slow, those of the nodes that have none.

        A node that shares its digit with no other node has no group in which it can be measured.

        A group is slow below `APART` of the round's best; an only group, below `TOGETHER` of the pairs'.
        """
        values = {digit: reduced.get(Group(nodes, exchange=False)) for digit, nodes in self._digits().items()}
        measured = {digit: value for digit, value in values.items() if value is not None}
        least = APART * max(measured.values(), default=0.0)
        if len(measured) == 1:
            least = TOGETHER * self.usual
        slow = {digit for digit, value in measured.items() if value < least}
        return slow or set(values) - set(measured)

    def _sound(self) -> bool:
        """Return whether all nodes together reach `TOGETHER` of the pairs' bandwidth; False if unmeasured."""
        return self.whole is not None and self.whole >= TOGETHER * self.usual

    def _digits(self) -> dict[int, tuple[str, ...]]:
        """Return digit → nodes whose number has it, for the place that is examined next."""
        return by_digit(self.nodes, len(self._slow))

    def _matches(self, number: int) -> bool:
        """Return whether every examined digit of a node's number was slow."""
        return all(number_of(number, place) in slow for place, slow in enumerate(self._slow))

    def _conclude(self, node: str | None) -> None:
        """End the search: set `verdict` against this node, or against the group if it is None."""
        self._over = True
        reached = f"{self.whole or 0.0:.1f} GB/s on {len(self.nodes)} nodes"
        text = f"all-reduce reaches {reached}, {self.usual:.1f} on pairs"
        if node is None:
            self.verdict = Verdict("bad", "group", (), f"{text}; no single node explains it")
        else:
            text = f"{node}: {text}; each half of the others is as fast, and slow with it"
            self.verdict = Verdict("bad", "group", (node,), text)
