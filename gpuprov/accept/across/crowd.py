"""Who holds up many at once, though pairs with him are sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuprov.accept.across.rounds import Group, by_digit, digits, number_of
from gpuprov.accept.across.verdicts import Verdict

TOGETHER = 0.75
"""All-reduce of many, as a part of what pairs reach: below it something holds up the whole."""
APART = 0.85
"""Of groups that should be alike, as a part of the best one."""
FEWEST = 8
"""Nodes, below which pairs and a round of all have shown everything."""


class Crowd:
    """All-reduces of all, then of those whose number has the same digit, then of all but the one found.

    Args:
        nodes: with whom nothing is wrong in pairs.
        usual: GB/s of bus bandwidth that pairs reach.
        whole: what all together reached, where that was measured.
    """

    def __init__(self, nodes: Sequence[str], usual: float, whole: float | None = None) -> None:
        self.nodes, self.usual, self.whole = list(nodes), usual, whole
        self.verdict: Verdict | None = None
        self._slow: list[set[int]] = []
        self._left_out: str | None = None
        self._over = len(nodes) < FEWEST or self._sound()

    def next(self) -> list[Group]:
        """The groups of the next round; none when it is over."""
        if self._over:
            return []
        if self.whole is None:
            return [Group(tuple(self.nodes), exchange=False)]
        if len(self._slow) < digits(len(self.nodes)):
            return [Group(nodes, exchange=False) for nodes in self._digits().values() if len(nodes) > 1]
        suspects = [node for number, node in enumerate(self.nodes) if self._matches(number)]
        if len(suspects) == 1:
            self._left_out = suspects[0]
            return [Group(tuple(node for node in self.nodes if node not in suspects), exchange=False)]
        self._conclude(None)
        return []

    def take(self, reduced: Mapping[Group, float]) -> None:
        """GB/s that the groups of the last round reached; 0 for one that did not come to its end."""
        if self._left_out is not None:
            sound = min(reduced.values(), default=0.0) >= TOGETHER * self.usual
            self._conclude(self._left_out if sound else None)
        elif self.whole is None:
            self.whole = min(reduced.values(), default=0.0)
        else:
            values = {
                digit: reduced.get(Group(nodes, exchange=False)) for digit, nodes in self._digits().items()
            }
            best = max((value for value in values.values() if value is not None), default=0.0)
            self._slow.append(
                {digit for digit, value in values.items() if value is None or value < APART * best}
            )
        self._over = self._over or self._sound()

    def _sound(self) -> bool:
        return self.whole is not None and self.whole >= TOGETHER * self.usual

    def _digits(self) -> dict[int, tuple[str, ...]]:
        return by_digit(self.nodes, len(self._slow))

    def _matches(self, number: int) -> bool:
        return all(number_of(number, place) in slow for place, slow in enumerate(self._slow))

    def _conclude(self, node: str | None) -> None:
        self._over = True
        text = (
            f"all-reduce of {len(self.nodes)} nodes reaches {self.whole:.1f} GB/s, of pairs {self.usual:.1f}"
        )
        if node is None:
            self.verdict = Verdict("bad", "group", (), f"{text}; no single node explains it")
        else:
            text = f"{node}: {text}; without it all are as fast: it slows whoever works with it in numbers"
            self.verdict = Verdict("bad", "group", (node,), text)
