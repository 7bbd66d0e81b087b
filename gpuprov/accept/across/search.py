"""Search for a bad node or link: choose the next round from the observations of the previous ones.

Two rounds of pairs test every node with two others, one round of all nodes tests every link. A suspect then
meets trusted nodes: a trusted node in a group with a pair that failed shows whether one of the two or the
link between them is at fault. A fault that appears only when many nodes work at once is found by the digits
of the nodes' numbers. Nothing here connects to a node.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from statistics import median, median_high, median_low

from gpuprov.accept.across.crowd import APART, Crowd
from gpuprov.accept.across.evidence import Evidence, Heard, Middle, Seen, is_late, is_slow
from gpuprov.accept.across.narrowing import Narrowing
from gpuprov.accept.across.rounds import Group, all_together, pairs
from gpuprov.accept.across.verdicts import Verdict, components, verdicts

MOST, AFTER = 14, 4
"""Most rounds of a search, and more of them if a node was found that ends large groups."""
FEW = 3
"""Most nodes of a group that counts as a pair: three when the count is odd or a trusted node is added."""


class Search:
    """Search across nodes: gives rounds, processes their results, returns verdicts.

    Args:
        nodes: names, neighbours next to each other.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = list(nodes)
        self.rounds = 0
        self.lost: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self.evidence = Evidence()
        self.crowd: Crowd | None = None
        self.pairwise: list[float] = []
        self._groups: list[Group] = []
        self._rates, self._times = Middle(median_high), Middle(median_low)
        self._silent: set[frozenset[str]] = set()
        """Links whose group of two died before its first exchange; neither end can be blamed."""
        self._alone: set[str] = set()
        """Nodes that must first be tested with a trusted node."""
        self._met: set[str] = set()
        """Nodes that took part in a round of all nodes."""
        self._together: dict[frozenset[str], float] = {}
        self._unfinished: dict[str, set[str]] = {}
        """Node → the nodes of every group of more than two with it that did not finish."""
        self._whole: list[Group] = []
        """Groups of the last round of all nodes."""
        self._is_of_crowd = False
        """Whether the last round is one of the search among many: tests of suspects can come between."""
        self._narrowing = Narrowing(FEW)
        self._begun = 0
        """How often the search among many has begun again."""
        self._apart: dict[str, list[str]] = defaultdict(list)
        """Node → the all-reduces for which it stated a much lower rate than the others of its group."""
        self._over = False
        self._since: dict[object, int] = {}

    def verdicts(self) -> list[Verdict]:
        """Return all verdicts known now, each with the round in which it was first known.

        If no group of the search has finished, these are only the lost nodes and one verdict about all
        others.
        """
        alive = tuple(node for node in self.nodes if node not in self.lost)
        found = verdicts(self.evidence, self.lost, self.nodes)
        found += self._narrowing.verdicts.values()
        found += (self._stated_less(node) for node in self._apart)
        if self.crowd is not None and self.crowd.verdict is not None:
            found.append(self.crowd.verdict)
        if self._over:
            found += self._unmeasured(alive)
        if self.rounds and len(alive) > 1 and not any(seen.kind == "fine" for seen in self.evidence.seen):
            found = [each for each in found if each.rule == "lost"]
            found.append(Verdict("bad", "group", alive, "no group finished: test one pair by hand"))
        return [self._completed(each) for each in found]

    def _stated_less(self, node: str) -> Verdict:
        """Return the verdict about a node that stated much less of an all-reduce than the others.

        It is a warning: another node can have sent it the last piece late.
        """
        text = f"{node}: states {', '.join(self._apart[node])} for an all-reduce that ends for all at once"
        return Verdict("warn", "reduced", (node,), text)

    def _unmeasured(self, alive: Sequence[str]) -> Iterator[Verdict]:
        """Yield a verdict about sound nodes that never finished a round of all nodes: they are not accepted
        with less than the whole test, nor those that were in each group with one of them that did not finish.
        """
        sound = self._sound(alive)
        unmet = [self._unfinished.get(node, set(sound)) | {node} for node in sound if node not in self._met]
        without = tuple(node for node in sound if any(node in each for each in unmet))
        if len(sound) > 1 and without:
            words = [f"{node}: {self.errors[node]}" for node in without if node in self.errors]
            text = f"no group of all {len(sound)} nodes finished in {self.rounds} rounds, only smaller ones"
            yield Verdict("bad", "group", without, "; ".join([text, *words[:FEW]]))

    def _completed(self, verdict: Verdict) -> Verdict:
        """Add to a verdict its first round and, unless nodes are lost, the messages of the nodes whose
        exchanges died, at most of its first `FEW` nodes.
        """
        ends = {node for seen in self.evidence.seen if seen.kind == "dead" for node in seen.link}
        named = (*verdict.nodes, *verdict.others)[:FEW]
        words = [f"{node}: {self.errors[node]}" for node in named if node in self.errors and node in ends]
        text = "; ".join([verdict.text, *words]) if verdict.rule != "lost" else verdict.text
        return replace(verdict, text=text, round=self._since.get(verdict.key, self.rounds))

    # --- the next round -----------------------------------------------------------------------------------

    def next(self) -> list[Group]:
        """Return the groups of the next round, and count it; an empty list ends the search.

        It ends after `MOST` rounds, `AFTER` more if a node was found that makes large groups fail, or with
        fewer than two nodes left.
        """
        alive = [node for node in self.nodes if node not in self.lost]
        self._whole, self._is_of_crowd = [], False
        most = MOST + (AFTER if self._narrowing.verdicts else 0)
        self._groups = [] if self.rounds >= most or len(alive) < 2 else self._plan(alive)
        self.rounds += bool(self._groups)
        self._over = not self._groups
        if self._over and self.crowd is not None:
            self.crowd.end()
        return self._groups

    def _plan(self, alive: list[str]) -> list[Group]:
        """Return the next groups: pairs, pairs at another distance, all nodes together, pairs while there are
        suspects, then the search for a node that slows many; from the second round on with tests of suspects.
        """
        if self.rounds == 0:
            return pairs(alive)
        sound = self._sound(alive)
        trusted = self.evidence.trusted(alive)
        whole = self.rounds > 1 and not self._met >= set(sound)
        tests = self._tests(trusted, only_dead=whole)
        busy = {node for group in tests for node in group.nodes} | self._alone
        rest = [node for node in sound if node not in busy]
        if self.rounds == 1:
            return [*tests, *pairs(rest, len(rest) // 2 + 1)]
        if whole:
            narrowed = self._narrowing.next(rest)
            groups = narrowed or all_together(rest)
            self._whole = [] if narrowed or len(rest) < len(sound) else groups
            return [*tests, *groups]
        if tests:
            return [*tests, *pairs(rest)]  # these pairs give the reference values of this round
        return self._many(alive)

    def _sound(self, alive: Iterable[str]) -> list[str]:
        """Return nodes with which a group can finish: no node that hangs or ends large groups, and only one
        end of each dead link.
        """
        dead = {each.link for each in self.evidence.seen if each.kind == "dead"}
        hung = {node for node in self.evidence.bad_nodes() if any(node in link for link in dead)}
        confirmed = (link for link in dead if self.evidence.is_confirmed(link) and not link & hung)
        apart = {max(link, key=self.nodes.index) for link in confirmed}
        return [node for node in alive if node not in hung | apart | self._narrowing.verdicts.keys()]

    def _tests(self, trusted: list[str], only_dead: bool) -> list[Group]:
        """Return groups that test suspects, no node in two groups: each with a trusted node while there are
        any, except a link of `_silent`, but with none that alone explains a link that died twice.

        Args:
            only_dead: leave out links that are only slow; they are tested with all others in the same round.
        """
        found = list(self._without_accuser(trusted))
        busy = {node for group in found for node in group.nodes}
        opened = [nodes for nodes in self._open(only_dead) if not nodes & busy]
        alone = self._alone - busy
        suspects = {node for nodes in opened for node in nodes} | alone | busy
        helpers = [node for node in trusted if node not in suspects]
        found += [Group((helpers.pop(), node)) for node in self._ordered(alone) if helpers]
        for nodes in opened:
            ends = self._ordered(nodes)
            links = map(frozenset, combinations(ends, 2))
            explaining = set(chain.from_iterable(map(self.evidence.explaining, links)))
            helper = next((node for node in reversed(helpers) if node not in explaining), None)
            if helper is None or nodes in self._silent:
                found.append(Group(tuple(ends)))
            else:
                helpers.remove(helper)
                found.append(Group((helper, *ends)))
        return found

    def _without_accuser(self, trusted: list[str]) -> Iterator[Group]:
        """Yield a pair for each node whose faults another node alone explains: itself and a third one."""
        accused = self.evidence.accused()
        alive = [node for node in self.nodes if node not in {*self.lost, *self.evidence.bad_nodes()}]
        free = [*(node for node in alive if node not in trusted), *trusted]
        for node in self._ordered(accused):
            helper = next((each for each in reversed(free) if each not in {node, *accused[node]}), None)
            if node in free and helper is not None:
                free = [each for each in free if each not in (node, helper)]
                yield Group((helper, node))

    def _ordered(self, nodes: Iterable[str]) -> list[str]:
        """Return nodes in the order of `self.nodes`."""
        return sorted(nodes, key=self.nodes.index)

    def _open(self, only_dead: bool) -> list[frozenset[str]]:
        """Return sets of nodes connected by links that were bad in one round and sound in fewer than two
        later ones; leave out links of lost nodes, and sets with a node of `_alone`.

        Args:
            only_dead: leave out links on which exchanges finished.
        """
        once = set()
        for link, seen in self.evidence.bad_links(self.evidence.bad_nodes()).items():
            later = [number for number in self.evidence.of_link(link) if number > seen[-1].round]
            dead = any(each.kind == "dead" for each in seen)
            wanted = not self.evidence.is_confirmed(link) and len(later) < 2 and (dead or not only_dead)
            if wanted and not link & set(self.lost):
                once.add(link)
        return [nodes for nodes in components(once) if not nodes & self._alone]

    def _many(self, alive: list[str]) -> list[Group]:
        """Return the groups of a search for a node that slows all nodes together, which the first call
        begins; none if they are as fast as pairs, or if no pair has a bandwidth.
        """
        if self.crowd is None:
            blamed = self._blamed()
            good = [node for node in alive if node not in blamed]
            if not self.pairwise:
                return []
            whole = self._together.get(frozenset(good))
            if self._begun:
                random.Random(self._begun).shuffle(good)  # noqa: S311 - other groups, no secret
            self.crowd = Crowd(good, median(self.pairwise), whole)
        self._is_of_crowd = True
        return self.crowd.next()

    def _blamed(self) -> set[str]:
        """Return nodes at fault, lost nodes, and one end or side of every link or path at fault; a fault seen
        once does not count.
        """
        blamed = set(self.lost)
        for each in self.verdicts():
            if each.rule in ("link", "between") and (each.others or each.rule == "link"):
                blamed |= set(each.others or each.nodes[1:])
            elif each.level == "bad" and each.rule != "once":
                blamed |= set(each.nodes)
        return blamed

    # --- its observations ---------------------------------------------------------------------------------

    def take(self, heard: Mapping[str, Heard]) -> None:
        """Process the reports of the last round; a node of a group without a report counts as lost."""
        silence = Heard(lost="no answer")
        result = {node: heard.get(node, silence) for group in self._groups for node in group.nodes}
        self.lost |= {node: each.lost for node, each in result.items() if each.lost}
        self.errors |= {node: each.error for node, each in result.items() if each.error}
        rates = self._rates.take(each.rates.values() for each in result.values())
        times = self._times.take(each.times.values() for each in result.values())
        for node, each in result.items():
            self.evidence.add(self._links(node, each, rates, times))
        reduced = {}
        for group in self._groups:
            of_group = {node: result[node] for node in group.nodes}
            if any(each.error or each.lost for each in of_group.values()):
                self._failed(of_group)
                reduced[group] = 0.0
            else:
                self._ended(group)
                reduced[group] = self._all_reduced(of_group)
        self._reduced(reduced)
        for verdict in self.verdicts():
            self._since.setdefault(verdict.key, self.rounds)

    def _links(
        self, node: str, result: Heard, rates: tuple[float, float] | None, times: tuple[float, float] | None
    ) -> Iterator[Seen]:
        """Yield a node's observations of the links from each peer to it: wrong data, else slow, else late,
        else fine.

        Args:
            rates, times: median and median deviation to compare with; None if there are none.
        """
        for peer in self._ordered(result.rates.keys() | result.times.keys() | result.wrong):
            rate, time = result.rates.get(peer), result.times.get(peer)
            seen = Seen(self.rounds, peer, node, "fine", rate or 0.0, rates[0] if rates else 0.0)
            if peer in result.wrong:
                yield replace(seen, kind="wrong")
            elif rate is not None and is_slow(rate, rates):
                yield replace(seen, kind="slow")
            elif time is not None and times is not None and is_late(time, times):
                yield replace(seen, kind="late", value=time, middle=times[0])
            else:
                yield seen

    def _ended(self, group: Group) -> None:
        """Record that a group finished: its nodes need no test with a trusted node; those of a group of all
        took part in a round of all, and those of more than `FEW` end no large group.
        """
        self._alone -= set(group.nodes)
        if group in self._whole or len(group.nodes) == len(self.nodes):
            self._met |= set(group.nodes)
        if group.exchange and len(group.nodes) > FEW:
            self._narrowing.ended(group.nodes)

    def _all_reduced(self, result: Mapping[str, Heard]) -> float:
        """Return the bandwidth of a group's all-reduce in GB/s, and record nodes that state less than `APART`
        of it.

        An all-reduce ends for all members at the same time, so their median counts, not what one states; 0 if
        at most half of them state one.
        """
        stated = {node: each.reduced for node, each in result.items() if each.reduced is not None}
        value = median(stated.values()) if 2 * len(stated) > len(result) else 0.0
        for node, each in stated.items():
            if len(stated) > 2 and each < APART * value:
                self._apart[node].append(f"{each:.1f} of {value:.1f} GB/s in round {self.rounds}")
        return value

    def _failed(self, result: Mapping[str, Heard]) -> None:
        """Record a group that did not finish; a lost node explains it without dead links.

        Links at the earliest step at which nodes are stuck are dead. Without such a step: the link of a pair
        is dead and its nodes need a test with a trusted one unless they had it, more than `FEW` nodes are
        narrowed down, other nodes need such a test.
        """
        if any(each.lost for each in result.values()):
            return
        for node in result if len(result) > 2 else ():
            self._unfinished[node] = self._unfinished.get(node, set(result)) & set(result)
        stuck = [(each.stuck[0], node, each.stuck[1]) for node, each in result.items() if each.stuck]
        first = min(stuck, default=(0,))[0]
        for link in {frozenset((node, peer)) for step, node, peer in stuck if step == first}:
            self._dead(link, result.keys())
        if stuck:
            return
        if len(result) == 2:
            self._silent.add(frozenset(result))
            self._dead(frozenset(result), result.keys())
            # A node that was already tested with a trusted one needs no second test.
            self._alone ^= set(result)
        elif len(result) > FEW:
            self._narrowing.failed({node: each.error for node, each in result.items()})
            # A smaller group, without nodes that were tested meanwhile, is not enough.
            self._met -= set(result)
            if self.crowd is not None:
                self._begin_again()
        else:
            self._alone |= set(result)

    def _begin_again(self) -> None:
        """Return from the search among many to a round of all; the next search has other groups."""
        self.crowd = None
        self._begun += 1

    def _dead(self, link: frozenset[str], group: Iterable[str]) -> None:
        """Add a link to the evidence as dead in both directions, in a group of these nodes."""
        a, b = self._ordered(link)
        among = frozenset(group) - link
        self.evidence.add(
            Seen(self.rounds, sender, receiver, "dead", among=among) for sender, receiver in ((a, b), (b, a))
        )

    def _reduced(self, reduced: Mapping[Group, float]) -> None:
        """Process the all-reduces of a round in GB/s; 0 means that the group did not finish. A search of many
        nodes receives those of its rounds; otherwise large groups and pairs without a bad link are recorded.
        """
        if self.crowd is not None and self._is_of_crowd:
            self.crowd.take(reduced)
            return
        for group, value in reduced.items():
            if len(group.nodes) > FEW:
                self._together[frozenset(group.nodes)] = value
            elif value and not any(self.evidence.of_link(frozenset(group.nodes[:2])).values()):
                self.pairwise.append(value)
