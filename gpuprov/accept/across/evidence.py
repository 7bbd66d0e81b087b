"""What was seen between nodes in each round, and whom that speaks against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

Kind = Literal["fine", "slow", "late", "wrong", "dead"]
SPREAD, LATE = 0.1, 1.0
"""A link is slow when it is so much below the middle of its round, and late when it takes so much longer."""
OUTLYING = 5.0
"""Of the modified z-score. A fleet has thousands of links: 3.5 would call some of every round outliers."""
FEWEST = 4


@dataclass(frozen=True)
class Heard:
    """What one node told of one round.

    Args:
        lost: why it gave no answer: it is out of reach, its program died.
        error: in its own words, why its group did not end.
        stuck: whom it was waiting for then, and in which step of the exchange.
        rates, times: node → GB/s received from it, µs of a small message there and back.
        wrong: nodes from which came something else than they sent.
        reduced: GB/s of bus bandwidth of the group's all-reduce.
    """

    lost: str = ""
    error: str = ""
    stuck: tuple[int, str] | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    wrong: frozenset[str] = frozenset()
    reduced: float | None = None


@dataclass(frozen=True)
class Seen:
    """One direction of one link in one round; `value` in GB/s or µs, `middle` that of the round."""

    round: int
    sender: str
    receiver: str
    kind: Kind
    value: float = 0.0
    middle: float = 0.0

    @property
    def link(self) -> frozenset[str]:
        """Both ends."""
        return frozenset((self.sender, self.receiver))

    @property
    def told(self) -> str:
        """`4.1 of 48.9 GB/s`."""
        words = {
            "fine": f"{self.value:.1f} GB/s",
            "slow": f"{self.value:.1f} of {self.middle:.1f} GB/s",
            "late": f"{self.value:.0f} µs, the middle is {self.middle:.0f} µs",
            "wrong": "what arrives is not what was sent",
            "dead": "no exchange came to an end",
        }
        return words[self.kind]


def spread(values: Iterable[float]) -> tuple[float, float]:
    """Median, and the median distance from it."""
    listed = list(values)
    middle = median(listed)
    return middle, median(abs(value - middle) for value in listed)


class Middle:
    """What is usual: of this round where enough was measured, else of the last round where it was."""

    def __init__(self) -> None:
        self._known: tuple[float, float] | None = None

    def take(self, values: Iterable[float]) -> tuple[float, float] | None:
        """Median and MAD to hold this round's values against; None as long as too few are known."""
        listed = list(values)
        if len(listed) >= FEWEST:
            self._known = spread(listed)
        return self._known


def is_slow(rate: float, usual: tuple[float, float] | None) -> bool:
    """Whether a rate is an outlier to the slow side."""
    if usual is None:
        return False
    middle, mad = usual
    return middle - rate > max(SPREAD * middle, OUTLYING * mad / 0.6745)


def is_late(time: float, usual: tuple[float, float] | None) -> bool:
    """Whether a message's time is an outlier to the slow side."""
    if usual is None:
        return False
    middle, mad = usual
    return time - middle > max(LATE * middle, OUTLYING * mad / 0.6745)


class Evidence:
    """All that was seen so far."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._bad: tuple[int, list[str]] = (0, [])

    def add(self, seen: Iterable[Seen]) -> None:
        """Take up what a round showed."""
        self.seen += seen

    def bad_nodes(self) -> list[str]:
        """Nodes that were bad in two rounds with different others, while those others are not; worst first.

        In a round a node is bad when more than half of its links are, one way or the other. A node in whom
        most of it is explained takes its links with it: what a bad node does to a good one speaks no more
        against that.
        """
        if self._bad[0] != len(self.seen):
            self._bad = (len(self.seen), self._found_bad())
        return list(self._bad[1])

    def _found_bad(self) -> list[str]:
        found: list[str] = []
        while True:
            scores = {
                node: score
                for node, score in self._scores(set(found)).items()
                if score[0] > 1 and score[1] > 1
            }
            if not scores:
                return found
            found.append(max(scores, key=lambda node: scores[node]))

    def _scores(self, explained: set[str]) -> dict[str, tuple[int, int, float]]:
        """Node → rounds in which it was bad, with how many others, and the share of its bad links."""
        rounds: dict[str, set[int]] = defaultdict(set)
        others: dict[str, set[str]] = defaultdict(set)
        share: dict[str, list[bool]] = defaultdict(list)
        for (node, number, _), alike in self._by_node(explained).items():
            share[node] += [seen.kind != "fine" for seen in alike]
            if _mostly_bad(alike):
                rounds[node].add(number)
                others[node] |= {each for seen in alike if seen.kind != "fine" for each in seen.link - {node}}
        return {
            node: (len(rounds[node]), len(others[node]), sum(share[node]) / len(share[node]))
            for node in rounds
        }

    def _by_node(self, explained: set[str]) -> dict[tuple[str, int, str], list[Seen]]:
        """All that was seen of each node, by round and direction; without what others explain."""
        told: dict[tuple[str, int, str], list[Seen]] = defaultdict(list)
        for seen in self.seen:
            if not explained & seen.link:
                told[seen.sender, seen.round, "sends"].append(seen)
                told[seen.receiver, seen.round, "receives"].append(seen)
        return told

    def bad_links(self, explained: Iterable[str]) -> dict[frozenset[str], list[Seen]]:
        """Links between sound nodes on which something was bad, with what was."""
        found: dict[frozenset[str], list[Seen]] = defaultdict(list)
        for seen in self.seen:
            if seen.kind != "fine" and not seen.link & set(explained):
                found[seen.link].append(seen)
        return found

    def of_link(self, link: frozenset[str]) -> dict[int, bool]:
        """Round → whether the link was bad in it."""
        told: dict[int, bool] = {}
        for seen in self.seen:
            if seen.link == link:
                told[seen.round] = told.get(seen.round, False) or seen.kind != "fine"
        return told

    def of_node(self, node: str) -> Iterator[Seen]:
        """All that is bad on a node's links."""
        return (seen for seen in self.seen if node in seen.link and seen.kind != "fine")

    def fine_between(self, nodes: Iterable[str]) -> bool:
        """Whether all links among some nodes were measured, and none was bad."""
        listed = sorted(nodes)
        links = [
            self.of_link(frozenset((a, b))) for place, a in enumerate(listed) for b in listed[place + 1 :]
        ]
        return bool(links) and all(told and not any(told.values()) for told in links)

    def trusted(self, nodes: Iterable[str]) -> list[str]:
        """Those of some nodes that were sound in the last round in which they were measured."""
        bad = set(self.bad_nodes())
        last: dict[str, tuple[int, bool]] = {}
        for (node, number, _), alike in self._by_node(bad).items():
            before, sound = last.get(node, (0, True))
            last[node] = (max(number, before), not _mostly_bad(alike) and (sound or number > before))
        return [node for node in nodes if last.get(node, (0, False))[1]]


def _mostly_bad(seen: list[Seen]) -> bool:
    return 2 * sum(each.kind != "fine" for each in seen) > len(seen)
