"""Verdicts from the evidence of all rounds: nodes, links and paths between sets of
nodes that are not sound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, product

from gpuprov.accept.across.evidence import Evidence, Seen
from gpuprov.finding import Finding, Level
from gpuprov.model.nodeset import fold


@dataclass(frozen=True)
class Verdict:
    """Fault of nodes or links, with the evidence.

    Args:
        rule: `node`, `link`, `between` (two sets of nodes), `group` (only many at once), `reduced`
            (states less of an all-reduce than the others), `lost`, `once`.
        nodes: the node, the ends of the link, or one side of a faulty path.
        others: the other side; empty for `between` when that is all other nodes.
        round: after which it was known.
    """

    level: Level
    rule: str
    nodes: tuple[str, ...]
    text: str
    others: tuple[str, ...] = ()
    round: int = 0

    @property
    def key(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Return the identity of the verdict over rounds."""
        return self.rule, self.nodes, self.others

    @property
    def finding(self) -> Finding:
        """Return the verdict as a finding of the report."""
        return Finding(self.level, f"across.{self.rule}", self.text)


def verdicts(evidence: Evidence, lost: Mapping[str, str], order: Iterable[str]) -> list[Verdict]:
    """Return all verdicts: lost nodes, nodes at fault, links at fault, and links that were bad only once, or
    only in groups with the same third node.

    The last ones are warnings, unless their data was wrong.

    Args:
        lost: node → why it gave no answer.
        order: all nodes, in the order of the report.
    """
    place = {node: number for number, node in enumerate(order)}
    found = [Verdict("bad", "lost", (node,), f"{node}: {why}") for node, why in lost.items()]
    bad = evidence.bad_nodes()
    for alike in _mutually_fine(evidence, bad):
        names = tuple(sorted(alike, key=place.__getitem__))
        if len(names) > 1:
            seen = [each for node in names for each in evidence.of_node(node)]
            text = f"between {fold(names)} and the others: {_described(seen)}; among one another they pass"
            found.append(Verdict("bad", "between", names, text))
        else:
            found.append(_of_node(evidence, names[0]))
    links = evidence.bad_links(bad)
    confirmed = set(filter(evidence.is_confirmed, links))
    for nodes in components(confirmed):
        found += _of_links(nodes, {link: links[link] for link in confirmed if link <= nodes}, place)
    for link, seen in links.items():
        if link not in confirmed:
            a, b = sorted(link, key=place.__getitem__)
            level: Level = "bad" if any(each.kind == "wrong" for each in seen) else "warn"
            rounds = {each.round for each in seen}
            only = (
                f"in round {min(rounds)}" if len(rounds) == 1 else f"with {fold(evidence.explaining(link))}"
            )
            text = f"between {a} and {b}: {_described(seen)}; seen only {only}"
            found.append(Verdict(level, "once", (a, b), text))
    return found


def components(links: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Return sets of nodes connected by the links, directly or through other nodes."""
    found: list[frozenset[str]] = []
    for link in links:
        touching = [each for each in found if each & link]
        found = [each for each in found if not each & link]
        found.append(frozenset(link.union(*touching)))
    return found


def _mutually_fine(evidence: Evidence, bad: Iterable[str]) -> list[list[str]]:
    """Group bad nodes that are sound to one another: then the path to the other nodes is at fault. Other bad
    nodes are groups of one.
    """
    found: list[list[str]] = []
    for node in bad:
        for alike in found:
            if evidence.fine_between([*alike, node]):
                alike.append(node)
                break
        else:
            found.append([node])
    return found


def _of_node(evidence: Evidence, node: str) -> Verdict:
    """Return the verdict against a bad node: its faults, the direction if only one has faults, and the
    rounds.
    """
    seen = list(evidence.of_node(node))
    ways = {"sends" if each.sender == node else "receives" for each in seen}
    alone = "" if len(ways) > 1 or seen[0].kind in ("late", "dead") else f" what it {ways.pop()}"
    rounds = sorted({each.round for each in seen})
    text = (
        f"{node}:{alone or ' to and from others'} {_described(seen)}; in rounds {', '.join(map(str, rounds))}"
    )
    return Verdict("bad", "node", (node,), text)


def _of_links(
    nodes: frozenset[str], links: Mapping[frozenset[str], list[Seen]], place: Mapping[str, int]
) -> list[Verdict]:
    """Return one verdict if every link between two sets is bad and none within them,
    else one for each link.
    """
    first = min(nodes, key=place.__getitem__)
    facing = frozenset(node for node in nodes if frozenset((first, node)) in links)
    beside = nodes - facing
    across = {frozenset(pair) for pair in product(beside, facing)}
    if len(links) > 1 and across == set(links):
        one, other = (tuple(sorted(side, key=place.__getitem__)) for side in (beside, facing))
        seen = [each for alike in links.values() for each in alike]
        text = f"between {fold(one)} and {fold(other)}: {_described(seen)}"
        return [Verdict("bad", "between", one, text, other)]
    found = []
    for a, b in combinations(sorted(nodes, key=place.__getitem__), 2):
        if seen := links.get(frozenset((a, b)), []):
            ways = {(each.sender, each.receiver) for each in seen}
            way = "from {} to {}".format(*ways.pop()) if len(ways) == 1 else f"between {a} and {b}"
            found.append(
                Verdict("bad", "link", (a, b), f"{way}: {_described(seen)}; both pass with other nodes")
            )
    return found


def _described(seen: list[Seen]) -> str:
    """Describe the most frequent kind by its worst value, then the other kinds."""
    kinds = [kind for kind, _ in Counter(each.kind for each in seen).most_common()]
    worst = {
        kind: min(
            (each for each in seen if each.kind == kind),
            key=lambda each: each.value if each.kind != "late" else -each.value,
        )
        for kind in kinds
    }
    return ", and ".join(worst[kind].text for kind in kinds)
