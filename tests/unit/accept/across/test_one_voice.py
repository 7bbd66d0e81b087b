"""Statements of one node decide for no other: neither that it is sound, nor that it is at fault."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from itertools import combinations
from typing import Any

import pytest

from gpuprov.accept import program
from gpuprov.accept.across import mesh
from gpuprov.accept.across.evidence import STAR, Heard
from gpuprov.accept.across.mesh import Mesh
from gpuprov.accept.across.rounds import Group
from gpuprov.accept.across.run import ROUND_S, START_S, Outcome, _below, _heard, search_across
from gpuprov.accept.across.search import AFTER, MOST, Search
from gpuprov.cli import accept_across
from gpuprov.errors import Unreachable
from gpuprov.model.connection import Connection
from gpuprov.ssh.dispatch import Dispatch
from gpuprov.ssh.transport import Target
from tests.unit.accept.across.test_meeting import handle
from tests.unit.samples import sample

RATE, SLOW = 49.0, 20.0
Word = Callable[[int, Group, Heard], Heard]
"""Function that returns the statement of a node in a round of a group, from the true one."""


def so(number: int, group: Group, heard: Heard) -> Heard:
    """Return a report unchanged."""
    return heard


def judged(
    count: int,
    who: int,
    word: Word,
    slowed: Callable[[Group], bool] = lambda group: False,
) -> tuple[list[str], list[str], Outcome]:
    """Search among `count` nodes; one states what `word` returns; groups are slow as `slowed` says.

    Returns the rejected nodes, those with only a warning, and the outcome.
    """
    names = [f"n{number:03}" for number in range(count)]
    search = Search(names)
    outcome = Outcome(search)
    while groups := search.next():
        result: dict[str, Heard] = {}
        for group in groups:
            rates = {node: {peer: RATE for peer in group.nodes if peer != node} for node in group.nodes}
            value = SLOW if slowed(group) else RATE
            heard = {
                node: Heard(rates=rates[node] if group.exchange else {}, reduced=value)
                for node in group.nodes
            }
            if names[who] in heard:
                heard[names[who]] = word(search.rounds, group, heard[names[who]])
            if any(each.error for each in heard.values()):
                heard = {node: Heard(error=each.error or "it ended") for node, each in heard.items()}
            result |= heard
        search.take(result)
    assert search.rounds <= MOST + AFTER
    verdicts = outcome.judged()
    rejected = [each.node for each in verdicts if each.verdict == "rejected"]
    warned = [each.node for each in verdicts if each.verdict != "rejected" and each.findings]
    return rejected, warned, outcome


def ends_large(number: int, group: Group, heard: Heard) -> Heard:
    """Return an error in place of a report of a group of more than three nodes."""
    return Heard(error="ncclSystemError") if len(group.nodes) > 3 else heard


@pytest.mark.parametrize("count", [5, 6, 7, 8, 9, 11, 16, 33, 64])
def test_a_node_that_ends_each_large_group_is_found_and_the_others_are_tested(count: int) -> None:
    for who in sorted({0, 1, count // 2, count - 1}):
        rejected, warned, outcome = judged(count, who, ends_large)
        assert (rejected, warned) == ([f"n{who:03}"], []), (who, outcome.verdicts)
        [verdict] = outcome.verdicts
        assert f"with it do not finish, others do; n{who:03}: ncclSystemError" in verdict.text
        assert len(outcome.search._met) == count - 1


@pytest.mark.parametrize("count", [5, 6, 7])
def test_a_node_that_states_low_rates_hides_no_slow_one(count: int) -> None:
    """Find a slow node among few although another one calls all others as slow as that one."""
    names = [f"n{number:03}" for number in range(count)]
    liar, slow = names[:2]
    outcome = Outcome(Search(names))
    while groups := outcome.search.next():
        heard = {}
        for group in groups:
            for node in group.nodes:
                peers = [peer for peer in group.nodes if peer != node]
                rates = {peer: SLOW if slow in (node, peer) else RATE for peer in peers}
                if node == liar and len(group.nodes) > 3:
                    rates = {peer: RATE if peer == slow else SLOW for peer in peers}
                heard[node] = Heard(rates=rates if group.exchange else {}, reduced=RATE)
        outcome.search.take(heard)
    assert slow in [each.node for each in outcome.judged() if each.verdict == "rejected"], outcome.verdicts


@pytest.mark.parametrize("count", [16, 33, 64])
def test_a_node_that_ends_large_groups_hides_no_other_fault(count: int) -> None:
    """Find a node that slows large groups in addition to one that ends them: only these two are rejected."""
    slowed = lambda group: "n005" in group.nodes and len(group.nodes) > 3  # noqa: E731
    assert judged(count, 3, so, slowed)[0] == ["n005"]
    assert judged(count, 3, ends_large, slowed)[0] == ["n003", "n005"]


@pytest.mark.parametrize("count", [9, 16, 64])
def test_a_node_that_ends_some_large_groups_gets_no_other_one_rejected_alone(count: int) -> None:
    for seed in range(20):
        chance = random.Random(seed)  # noqa: S311

        def some(number: int, group: Group, heard: Heard, chance: random.Random = chance) -> Heard:
            return Heard(error="reset") if len(group.nodes) > 3 and chance.random() < 0.6 else heard

        rejected, _, outcome = judged(count, 3, some)
        everybody = [f"n{number:03}" for number in range(count)]
        assert rejected in ([], ["n003"], everybody), (seed, outcome.verdicts)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [5, 6, 7, 8, 9, 11, 16, 33])
@pytest.mark.parametrize("least", [3, 4])
def test_a_node_that_ends_the_large_groups_of_another_does_not_get_it_rejected_alone(
    count: int, least: int
) -> None:
    """Blame no node for groups that the same other node was in, at each place of both."""
    victims = {0, 1, count // 2, count - 2}
    pairs = [(victim, who) for victim in sorted(victims) for who in range(count) if who != victim]
    for victim, who in sample(pairs, 4, f"{count} {least}"):

        def ends(number: int, group: Group, heard: Heard, victim: int = victim) -> Heard:
            with_both = len(group.nodes) >= least and f"n{victim:03}" in group.nodes
            return Heard(error="ncclSystemError") if with_both else heard

        rejected = judged(count, who, ends)[0]
        assert f"n{who:03}" in rejected or not rejected, (victim, who)


@pytest.mark.parametrize("count", [3, 4, 5, 8, 16, 33])
@pytest.mark.parametrize("waits", [True, False])
def test_a_node_that_breaks_the_exchanges_of_two_others_gets_none_of_them_rejected_in_its_place(
    count: int, waits: bool
) -> None:
    """Refuse the victim in a group of two, and end its exchange with the third one in a group of three.

    NCCL passes addresses through all nodes of a group.
    """
    names = [f"n{number:03}" for number in range(count)]
    choices = [(victim, who) for victim in names for who in names if who != victim]
    for victim, who in sample(choices, 6, f"{count} {waits}"):
        search = Search(names)
        outcome = Outcome(search)
        while groups := search.next():
            result: dict[str, Heard] = {}
            for group in groups:
                rates = {node: {peer: RATE for peer in group.nodes if peer != node} for node in group.nodes}
                heard = {node: Heard(rates=rates[node], reduced=RATE) for node in group.nodes}
                if {victim, who} <= set(group.nodes) and len(group.nodes) <= 3:
                    third = next((node for node in group.nodes if node not in (victim, who)), who)
                    stuck = {victim: (0, third), third: (0, victim)} if waits or third != who else {}
                    heard = {node: Heard(error="timed out", stuck=stuck.get(node)) for node in heard}
                result |= heard
            search.take(result)
        rejected = [each.node for each in outcome.judged() if each.verdict == "rejected"]
        assert who in rejected or victim not in rejected, (victim, who, outcome.verdicts)


def disturbed(count: int, disturb: Callable[[int, Group, dict[str, Heard]], dict[str, Heard]]) -> Outcome:
    """Return the outcome of a search among nodes whose reports of each group `disturb` returns."""
    search = Search([f"n{number:03}" for number in range(count)])
    while groups := search.next():
        result: dict[str, Heard] = {}
        for group in groups:
            peers = group.nodes if group.exchange else ()
            heard = {
                node: Heard(rates={each: RATE for each in peers if each != node}, reduced=RATE)
                for node in group.nodes
            }
            result |= disturb(search.rounds, group, heard)
        search.take(result)
    return Outcome(search)


def dead(group: Group, stuck: Mapping[str, str]) -> dict[str, Heard]:
    """Return the reports of a group that ended while some nodes waited for others."""
    return {
        node: Heard(error="timed out", stuck=(0, stuck[node]) if node in stuck else None)
        for node in group.nodes
    }


@pytest.mark.parametrize("count", [4, 5, 7, 8, 16])
def test_a_node_that_ends_other_links_of_another_one_each_time_gets_it_not_rejected_alone(count: int) -> None:
    """Reject with a node that never finished a large group those that were in each one that it has not."""
    names = [f"n{number:03}" for number in range(count)]
    for victim, who in sample([(a, b) for a in names for b in names if a != b], 6, f"{count}"):

        def ends(
            number: int, group: Group, heard: dict[str, Heard], victim: str = victim, who: str = who
        ) -> dict[str, Heard]:
            others = [node for node in group.nodes if node not in (victim, who)]
            if not {victim, who} <= set(group.nodes) or not others:
                return heard
            return dead(group, {others[number % len(others)]: victim})

        rejected = [each.node for each in disturbed(count, ends).judged() if each.verdict == "rejected"]
        assert who in rejected or victim not in rejected, (victim, who)


@pytest.mark.parametrize("count", [12, 16, 33])
def test_a_node_that_ends_links_between_those_that_it_accuses_has_few_of_them_rejected(count: int) -> None:
    victims = [f"n{number:03}" for number in (1, 4, 5, 7)]

    def lies(number: int, group: Group, heard: dict[str, Heard]) -> dict[str, Heard]:
        if len(group.nodes) <= 3 or not {"n003", *victims} <= set(group.nodes) or not group.exchange:
            return heard
        if number == 3:
            return dead(group, dict(zip(victims, reversed(victims), strict=True)))
        return {**heard, "n003": replace(heard["n003"], wrong=frozenset(victims))}

    rejected = [each.node for each in disturbed(count, lies).judged() if each.verdict == "rejected"]
    assert rejected == ["n003"]


def test_a_node_that_waits_for_another_one_in_the_search_among_many_ends_no_search() -> None:
    """Continue where a node that slows many states a link that is dead: a test of it comes in between."""
    names = [f"n{number:03}" for number in range(16)]
    search = Search(names)
    while groups := search.next():
        result: dict[str, Heard] = {}
        for group in groups:
            value = SLOW if "n002" in group.nodes else RATE
            for node in group.nodes:
                peers = dict.fromkeys(group.nodes, RATE) if group.exchange else {}
                rates = {peer: rate for peer, rate in peers.items() if peer != node}
                result[node] = Heard(rates=rates, reduced=value)
            if search.rounds > 6 and {"n002", "n012"} <= set(group.nodes):
                result |= dict.fromkeys(group.nodes, Heard(error="no answer"))
                result["n002"] = Heard(error="no answer", stuck=(0, "n012"))
        search.take(result)
    rejected = [each.node for each in Outcome(search).judged() if each.verdict == "rejected"]
    assert "n002" in rejected


def test_a_node_states_nothing_about_an_exchange_that_its_group_has_not() -> None:
    row = {"member": 1, "value": SLOW, "wrong": {"gpu": 0}}
    answers = [{"value": {"exchange": [row]}}, {"error": "no answer", "step": 0, "member": 1}]
    for exchange in (True, False):
        heard = [_heard(each, Group(("n1", "n2"), exchange), "n1") for each in answers]
        assert bool(heard[0].rates) is bool(heard[0].wrong) is bool(heard[1].stuck) is exchange


def test_nodes_that_never_finish_a_group_of_all_are_not_accepted() -> None:
    """Reject four nodes with a group of all that never finishes: no smaller one shows whose."""
    rejected, _, outcome = judged(4, 2, ends_large)
    assert rejected == ["n000", "n001", "n002", "n003"]
    [verdict] = outcome.verdicts
    assert "no group of all 4 nodes finished in 14 rounds, only smaller ones; n000: it" in verdict.text


def test_a_group_too_large_for_all_is_no_ones_fault_and_accepts_none() -> None:
    """Reject all, with the reason, where no group of more than 32 finishes with any nodes."""
    names = [f"n{number:03}" for number in range(64)]
    search = Search(names)
    while groups := search.next():
        result = {}
        for group in groups:
            whole = len(group.nodes) <= 32
            for node in group.nodes:
                rates = {peer: RATE for peer in group.nodes if peer != node}
                result[node] = Heard(rates=rates, reduced=RATE) if whole else Heard(error="out of memory")
        search.take(result)
    [verdict] = search.verdicts()
    assert verdict.nodes == tuple(names)
    assert "no group of all 64 nodes finished in 14 rounds" in verdict.text
    assert verdict.text.count("out of memory") == 3


def test_one_error_is_repeated_and_forgotten() -> None:
    once = judged(16, 3, lambda at, group, heard: Heard(error="reset") if at == 3 else heard)
    assert once[:2] == ([], [])


@pytest.mark.parametrize("count", [8, 9, 16, 17, 64])
def test_one_low_word_about_a_group_rejects_nobody(count: int) -> None:
    def low(number: int, group: Group, heard: Heard) -> Heard:
        return replace(heard, reduced=SLOW) if number == 3 else heard

    rejected, warned, outcome = judged(count, 3, low)
    assert (rejected, warned) == ([], ["n003"])
    [verdict] = outcome.verdicts
    assert verdict.text.startswith("n003: states 20.0 of 49.0 GB/s in round 3 for an all-reduce that ends")


def test_low_words_about_more_than_one_group_reject_nobody_and_hide_no_other_fault() -> None:
    def low(number: int, group: Group, heard: Heard) -> Heard:
        return replace(heard, reduced=SLOW) if len(group.nodes) > 2 else heard

    slowed = lambda group: "n005" in group.nodes and len(group.nodes) > 3  # noqa: E731
    assert judged(16, 3, low)[:2] == ([], ["n003"])
    rejected, _, outcome = judged(16, 3, low, slowed)
    assert rejected == ["n005"], outcome.verdicts


def test_a_node_to_which_another_one_sends_the_last_piece_late_is_not_rejected() -> None:
    """Reject no node for its own time of an all-reduce, also not by the site's floor."""
    heard = {name: Heard(reduced=SLOW if name == "n003" else RATE) for name in ("n000", "n003", "n006")}
    assert not [*_below([heard], {"n003": {"across_nodes": 30.0}})]
    late = lambda at, group, heard: replace(heard, reduced=SLOW) if "n000" in group.nodes else heard  # noqa: E731
    assert judged(9, 3, late)[:2] == ([], ["n003"])


@pytest.mark.parametrize(("count", "victim"), [(9, "n008"), (17, "n016"), (16, "n005")])
def test_a_node_that_slows_the_groups_of_another_does_not_get_it_rejected_alone(
    count: int, victim: str
) -> None:
    """Blame no node alone where a node really slows each group that it shares with its victim."""
    rejected, _, outcome = judged(
        count, 0, so, lambda group: {"n000", victim} <= set(group.nodes) and group.nodes[2:] != ()
    )
    assert rejected != [victim], outcome.verdicts
    assert len(rejected) in (0, count)


def stopped(*_: Any) -> Mesh:
    """Raise KeyboardInterrupt, as if the user had stopped the run."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("who", [3, None])
def test_a_node_that_answers_just_in_time_has_no_other_one_lost(
    monkeypatch: pytest.MonkeyPatch, who: int | None
) -> None:
    """Add up the times that the controller waits: no node's program ends itself before the search does."""
    names, passed, given = [f"n{at:03}" for at in range(16)], [0.0], {}
    monkeypatch.setattr(program, "fabric", lambda **stated: given.update(stated))
    monkeypatch.setattr(mesh, "Mesh", stopped)
    nodes = [Target(name, name, Connection()) for name in names]
    stated = {"folders": (), "drained": False, "fabric": None, "output": "json", "fleet": "", "floors": {}}
    with pytest.raises(KeyboardInterrupt):
        accept_across.measure_across(nodes, dispatch=Dispatch(), of_node={}, **stated)

    class JustInTime(Mesh):
        """Nodes of which one uses up each limit of time, and ends large groups."""

        def ask(self, orders: Mapping[str, Any], seconds: float) -> dict[str, Any]:
            """Return answers in which the slow node is late; all others are lost if the time of a node's
            program is over.
            """
            slow = None if who is None else names[who]
            passed[0] += seconds + mesh.BEYOND_S if slow in orders else 1.0
            if passed[0] > given["seconds"]:
                lost = Unreachable("the connection broke: the program has ended (SIGALRM)")
                return {node: {"error": "late"} if node == slow else lost for node in orders}
            return {node: self._answer(order, node == slow) for node, order in orders.items()}

        def _answer(self, order: Mapping[str, Any], slow: bool) -> dict[str, Any]:
            """Return the answer to an order; the slow node has lost a connection."""
            if order["do"] == "look":
                return {"gpus": [0], "nvlinks": 0, "rdma": []}
            if order["do"] == "id":
                return {"value": handle(ip_address("192.0.2.2"))}
            peers = [at for at in range(len(order["with"]["members"])) if at != order["with"]["me"]]
            rows = [{"member": at, "value": RATE, "us": 9.0} for at in peers]
            ended = {"error": "reset"} if slow and len(peers) > 2 else {}
            return ended or {"value": {"exchange": rows, "reduced": {"value": RATE}}}

    known = {name: [ip_address("192.0.2.2")] for name in names}
    outcome = search_across(JustInTime(names, lambda _: None), names, known=known)
    assert not outcome.search.lost
    each_round = START_S + ROUND_S + 2 * mesh.BEYOND_S
    assert given["seconds"] >= START_S + mesh.BEYOND_S + (MOST + AFTER) * each_round


@pytest.mark.parametrize("count", [65, 70, 130, 256])
def test_a_node_that_slows_many_is_found_or_all_are_rejected(count: int) -> None:
    """Never accept all where a group is slow, also where there are more nodes than rounds can tell apart."""
    rejected, _, outcome = judged(count, 0, so, lambda group: "n007" in group.nodes and len(group.nodes) > 3)
    assert rejected == ["n007"], outcome.verdicts


def of_half(group: Group, number: int, *, moves: bool) -> list[str]:
    """Return half of the other nodes of a large group with exchanges, other ones in each round if it `moves`;
    [] for another group.
    """
    peers = [node for node in group.nodes if node != "n003"]
    if len(peers) < 3 or not group.exchange:
        return []
    first = number if moves else 0
    return (peers[first:] + peers[:first])[: len(peers) // 2]


@pytest.mark.parametrize("count", [9, 16, 33, 64])
@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("kind", ["wrong", "slow", "late"])
def test_a_node_that_states_faults_of_half_of_its_links_has_few_others_rejected(
    count: int, moves: bool, kind: str
) -> None:
    def word(number: int, group: Group, heard: Heard) -> Heard:
        named = of_half(group, number, moves=moves)
        if kind == "wrong":
            return replace(heard, wrong=frozenset(named))
        if kind == "slow":
            return replace(heard, rates={**heard.rates, **dict.fromkeys(named, 1.0)})
        return replace(heard, times={**dict.fromkeys(heard.rates, 20.0), **dict.fromkeys(named, 900.0)})

    rejected, _, outcome = judged(count, 3, word)
    assert not rejected or "n003" in rejected, outcome.verdicts
    assert len(rejected) <= STAR, outcome.verdicts  # with fewer links, also their other ends


@pytest.mark.parametrize("count", [9, 16, 33])
def test_a_node_that_waits_for_another_one_in_each_large_group_has_few_others_rejected(count: int) -> None:
    def waits(number: int, group: Group, heard: Heard) -> Heard:
        named = of_half(group, number, moves=True)
        return Heard(error="no answer", stuck=(0, named[0])) if named else heard

    rejected, _, outcome = judged(count, 3, waits)
    assert "n003" in rejected, outcome.verdicts
    assert len(rejected) <= STAR, outcome.verdicts


def test_a_node_that_states_links_below_the_floor_is_rejected_alone() -> None:
    """Attribute three or more links of one node to it, and fewer to both ends."""
    names = [f"n{number:03}" for number in range(16)]
    for count, rejected in ((1, 2), (2, 3), (3, 1), (7, 1), (9, 1)):
        rates = {node: {peer: RATE for peer in names if peer != node} for node in names}
        rates["n003"] |= dict.fromkeys([each for each in names if each != "n003"][:count], SLOW)
        heard = {node: Heard(rates=rates[node]) for node in names}
        [(_, nodes)] = _below([heard], {"n001": {"between_nodes": 30.0}})
        assert ("n003" in nodes, len(nodes)) == (True, rejected)


@pytest.mark.parametrize("count", [8, 16, 33])
@pytest.mark.parametrize("who", [0, -1])
def test_a_node_that_prevents_exchanges_of_halves_does_not_keep_them_apart(count: int, who: int) -> None:
    """Accept no nodes that only met in parts, as while exchanges of the other half are tested again."""
    names = [f"n{number:03}" for number in range(count)]
    hostile = names[who]
    first, second = ([each for each in half if each != hostile] for half in (names[::2], names[1::2]))
    prevented = [list(zip(half[::2], half[1::2], strict=False)) for half in (first, first, second, second)]
    search, finished = Search(names), set[frozenset[str]]()
    while groups := search.next():
        result: dict[str, Heard] = {}
        for group in groups:
            if prevented and hostile in group.nodes and group.exchange and len(group.nodes) > 0.8 * count:
                stuck = {a: (0, b) for pair in prevented.pop(0) for a, b in (pair, pair[::-1])}
                result |= {node: Heard(error="timed out", stuck=stuck.get(node)) for node in group.nodes}
            else:
                finished |= {frozenset(pair) for pair in combinations(group.nodes, 2)}
                rates = {node: dict.fromkeys({*group.nodes} - {node}, RATE) for node in group.nodes}
                result |= {node: Heard(rates=rates[node], reduced=RATE) for node in group.nodes}
        search.take(result)
    rejected = {node for each in search.verdicts() if each.level == "bad" for node in each.nodes}
    assert all(frozenset(pair) in finished for pair in combinations({*names} - rejected, 2))
    assert not rejected or hostile in rejected
