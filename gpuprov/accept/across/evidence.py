"""Observations between nodes in each round, and the nodes and links that they incriminate."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from statistics import median, median_low
from typing import Literal

Kind = Literal["fine", "slow", "late", "wrong", "dead"]
SPREAD, LATE = 0.1, 1.0
"""Limits of a link against its round's median: slow when this share below it, late when this share above it.
"""
OUTLYING = 5.0
"""Limit of the modified z-score. A fleet has thousands of links; 3.5 would give outliers in every round."""
NORMAL = 0.6745
"""MAD of a normal distribution with a standard deviation of 1 (Iglewicz and Hoaglin, 1993)."""
FEWEST = 4
STAR = 3
"""Fewest links at fault that one node explains better than the other end of each: what has passed on them
only both ends know, and one of them can state anything.
"""
SMALL = 4
"""Number of nodes up to which a value has to be twice `SPREAD` below the median."""


@dataclass(frozen=True)
class Heard:
    """One node's report of one round.

    Args:
        lost: why there is no answer: the node is unreachable, or its program died.
        error: the node's own message about why its group did not finish.
        stuck: the step of the exchange in which the node was waiting, and the peer it was waiting for.
        rates, times: peer → GB/s received from it, µs of a small message's round trip.
        wrong: peers whose data arrived corrupted.
        reduced: bus bandwidth of the group's all-reduce in GB/s.
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
    """Observation of one direction of one link in one round; `value` and `middle` (the round's median) in
    GB/s or µs.

    Args:
        among: the other nodes of the group of a dead link: NCCL passes addresses through all nodes of a
            group, so that each can prevent an exchange of two others.
    """

    round: int
    sender: str
    receiver: str
    kind: Kind
    value: float = 0.0
    middle: float = 0.0
    among: frozenset[str] = frozenset()

    @cached_property
    def link(self) -> frozenset[str]:
        """Return both ends of the link."""
        return frozenset((self.sender, self.receiver))

    @property
    def text(self) -> str:
        """Return the observation in words: `48.9 GB/s`, `4.1 of 48.9 GB/s`, or a sentence."""
        words = {
            "fine": f"{self.value:.1f} GB/s",
            "slow": f"{self.value:.1f} of {self.middle:.1f} GB/s",
            "late": f"{self.value:.0f} µs, the median is {self.middle:.0f} µs",
            "wrong": "the received data differs from the sent data",
            "dead": "no exchange finished",
        }
        return words[self.kind]


def centres(links: Iterable[frozenset[str]], bad: Mapping[frozenset[str], Collection[str]]) -> list[str]:
    """Return the nodes that alone explain at least `STAR` links: each leads to a node without another bad
    link, except those that the first node alone explains too. The one with most links is first.

    Args:
        links: links at fault.
        bad: each link that was ever bad → the other nodes that were in each group in which it was bad.
    """
    ends = Counter(chain.from_iterable(bad))
    explained = Counter((end, node) for link, among in bad.items() for end in link for node in among)
    found = Counter(
        node
        for link in links
        for node in link
        if all(ends[each] - explained[each, node] == 1 for each in link - {node})
    )
    return [node for node, count in found.most_common() if count >= STAR]


class Middle:
    """Reference values: of this round if enough was measured, otherwise of the last round with enough.

    Args:
        of_node: function of the values of one node, `median_high` or `median_low`: the better one of two
            that are in the middle, as half of the links of a sound node can lead to slow ones.
    """

    def __init__(self, of_node: Callable[[Iterable[float]], float]) -> None:
        self._of_node = of_node
        self._known: tuple[float, float] | None = None

    def take(self, of_nodes: Iterable[Collection[float]]) -> tuple[float, float] | None:
        """Return the median and MAD to compare this round's values with; None while fewer than `FEWEST`
        values are known.

        Each node counts by the median of its own values: a third of the nodes has more than half of the
        links. With fewer values than that, those of the last round that had enough are returned. Up to
        `SMALL` nodes the MAD is at least that with which a value is an outlier when it is twice `SPREAD`
        below the median, as so few do not show the spread of healthy links.

        Args:
            of_nodes: the values of each node, of links to it.
        """
        listed = [own for own in of_nodes if own]
        if sum(map(len, listed)) >= FEWEST:
            middle = median(map(self._of_node, listed))
            mad = median(median_low(abs(value - middle) for value in own) for own in listed)
            least = 2 * SPREAD * middle * NORMAL / OUTLYING if len(listed) <= SMALL else 0.0
            self._known = middle, max(mad, least)
        return self._known


def is_slow(rate: float, usual: tuple[float, float] | None) -> bool:
    """Return whether a rate is below the median by more than `SPREAD` of it and `OUTLYING` deviations; False
    without reference values.
    """
    if usual is None:
        return False
    middle, mad = usual
    return middle - rate > max(SPREAD * middle, OUTLYING * mad / NORMAL)


def is_late(time: float, usual: tuple[float, float] | None) -> bool:
    """Return whether a message's time exceeds the median by more than `LATE` of it and `OUTLYING` deviations;
    False without reference values.
    """
    if usual is None:
        return False
    middle, mad = usual
    return time - middle > max(LATE * middle, OUTLYING * mad / NORMAL)


class Evidence:
    """Observations of all rounds so far."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._links: dict[frozenset[str], dict[int, bool]] = {}
        """Link → round → whether it was bad in it."""
        self._faults: dict[str, list[Seen]] = defaultdict(list)
        """Node → the bad observations of its links."""
        self._bad: tuple[int, list[str]] = (0, [])

    def add(self, seen: Iterable[Seen]) -> None:
        """Add the observations of a round: to all, to the rounds of each link, and bad ones to the faults of
        both ends.
        """
        for each in seen:
            bad, rounds = each.kind != "fine", self._links.setdefault(each.link, {})
            rounds[each.round] = rounds.get(each.round, False) or bad
            for node in each.link if bad else ():
                self._faults[node].append(each)
            self.seen.append(each)

    def bad_nodes(self) -> list[str]:
        """Return nodes that were bad in rounds that no other node alone explains, worst first; then those of
        `centres`.

        A node is bad in a round when more than half of its links are, in one direction. The links of a node
        found bad are ignored afterwards: a bad link between a bad and a good node does not count against the
        good one.
        """
        if self._bad[0] != len(self.seen):
            self._bad = (len(self.seen), self._found_bad())
        return list(self._bad[1])

    def _found_bad(self) -> list[str]:
        """Return the nodes of `bad_nodes`: find the worst, ignore its links, and repeat."""
        found: list[str] = []
        while True:
            scores, _ = self._scores(set(found))
            if scores:
                found.append(max(scores, key=lambda node: scores[node]))
                continue
            bad = self.bad_links(found)
            others = {link: _always_among(seen) for link, seen in bad.items()}
            alone = centres(filter(self.is_at_fault, bad), others)
            if not alone:
                return found
            found.append(alone[0])

    def is_at_fault(self, link: frozenset[str]) -> bool:
        """Return whether a link was bad in more than one round, or changed data in one."""
        return self.is_confirmed(link) or any(each.kind == "wrong" for each in self._bad_of_link(link))

    def is_confirmed(self, link: frozenset[str]) -> bool:
        """Return whether a link was bad in more than one round, and no other node alone explains that."""
        return self._is_repeated(link) and not self.explaining(link)

    def explaining(self, link: frozenset[str]) -> frozenset[str]:
        """Return the other nodes that were in each group in which a link was bad; empty for a link that was
        bad in fewer than two rounds.
        """
        seen = self._bad_of_link(link) if self._is_repeated(link) else []
        return _always_among(seen) if seen else frozenset()

    def _is_repeated(self, link: frozenset[str]) -> bool:
        """Return whether a link was bad in more than one round."""
        return sum(self.of_link(link).values()) > 1

    def _bad_of_link(self, link: frozenset[str]) -> list[Seen]:
        """Return the bad observations of a link."""
        return [each for each in self.of_node(min(link)) if each.link == link]

    def accused(self) -> dict[str, frozenset[str]]:
        """Return node → the other nodes of which each alone explains its faults, without bad nodes.

        These nodes were bad in at least two rounds, to at least two peers, and when they were last measured.
        """
        _, explained = self._scores(set(self.bad_nodes()))
        sound = set(self.trusted(explained))
        return {node: others for node, others in explained.items() if node not in sound}

    def _scores(
        self, left_out: set[str]
    ) -> tuple[dict[str, tuple[int, int, float]], dict[str, frozenset[str]]]:
        """Return the nodes that were bad in at least two rounds, without links of the nodes in `left_out`.

        Returns:
            Bad node → number of its bad rounds, number of peers with bad links in them, share of bad links in
            all rounds; and node with bad rounds that is not bad → the nodes that each explain them alone.
        """
        bad: dict[str, dict[int, list[Seen]]] = defaultdict(lambda: defaultdict(list))
        share: dict[str, list[bool]] = defaultdict(list)
        for (node, number, _), alike in self._by_node(left_out).items():
            share[node] += [seen.kind != "fine" for seen in alike]
            if _mostly_bad(alike):
                bad[node][number] += [seen for seen in alike if seen.kind != "fine"]
        scores, explained = {}, {}
        for node, rounds in bad.items():
            seen = list(chain.from_iterable(rounds.values()))
            peers = {peer for each in seen for peer in each.link - {node}}
            others = frozenset.intersection(*(each.link - {node} | each.among for each in seen))
            if len(rounds) > 1 and len(peers) > 1 and others:
                explained[node] = others
            elif len(rounds) > 1 and not others:
                scores[node] = (len(rounds), len(peers), sum(share[node]) / len(share[node]))
        return scores, explained

    def _by_node(self, explained: set[str]) -> dict[tuple[str, int, str], list[Seen]]:
        """Return (node, round, `sends` or `receives`) → observations; leave out links of nodes in
        `explained`.
        """
        result: dict[tuple[str, int, str], list[Seen]] = defaultdict(list)
        for seen in self.seen:
            if not explained & seen.link:
                result[seen.sender, seen.round, "sends"].append(seen)
                result[seen.receiver, seen.round, "receives"].append(seen)
        return result

    def bad_links(self, explained: Iterable[str]) -> dict[frozenset[str], list[Seen]]:
        """Return link → its bad observations, for links between nodes that are not in `explained`."""
        found: dict[frozenset[str], list[Seen]] = defaultdict(list)
        left_out = set(explained)
        for seen in self.seen:
            if seen.kind != "fine" and not seen.link & left_out:
                found[seen.link].append(seen)
        return found

    def of_link(self, link: frozenset[str]) -> Mapping[int, bool]:
        """Return round → whether the link was bad in it, for the rounds in which it was measured."""
        return self._links.get(link, {})

    def of_node(self, node: str) -> Sequence[Seen]:
        """Return the bad observations of a node's links."""
        return self._faults.get(node, ())

    def fine_between(self, nodes: Iterable[str]) -> bool:
        """Return whether all links among the nodes were measured and none was ever bad; False for fewer than
        two nodes.
        """
        listed = sorted(nodes)
        links = [
            self.of_link(frozenset((a, b))) for place, a in enumerate(listed) for b in listed[place + 1 :]
        ]
        return bool(links) and all(result and not any(result.values()) for result in links)

    def trusted(self, nodes: Iterable[str]) -> list[str]:
        """Return those of the nodes that were sound in the last round in which they were measured; links of
        bad nodes do not count, and a node without a measurement is not trusted.
        """
        bad = set(self.bad_nodes())
        last: dict[str, tuple[int, bool]] = {}
        for (node, number, _), alike in self._by_node(bad).items():
            before, sound = last.get(node, (0, True))
            last[node] = (max(number, before), not _mostly_bad(alike) and (sound or number > before))
        return [node for node in nodes if last.get(node, (0, False))[1]]


def _always_among(seen: Sequence[Seen]) -> frozenset[str]:
    """Return the other nodes that were in each group of one or more observations."""
    return frozenset.intersection(*(each.among for each in seen))


def _mostly_bad(seen: list[Seen]) -> bool:
    """Return whether more than half of the observations are bad."""
    return 2 * sum(each.kind != "fine" for each in seen) > len(seen)
