"""Search for faults in fake fleets of 64 nodes: each is found in at most eight rounds, and nothing else."""

from __future__ import annotations

import pytest

from gpuprov.accept.across.rounds import LARGEST, all_together, by_digit, digits, pairs, tournament
from gpuprov.accept.across.search import MOST
from tests.unit.accept.across.fabric import Fabric, searched
from tests.unit.accept.across.faults import FAULTS, tried, who
from tests.unit.samples import sample

PLACES = 5
"""Number of random places at which each fault is tried."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_among_64_nodes_is_found_in_eight_rounds_and_nothing_else(name: str) -> None:
    for place in sample(range(PLACES), 3, name):
        search, wanted = tried(name, place)
        assert who(search.verdicts()) == wanted, search.verdicts()
        assert search.rounds <= 8


@pytest.mark.thorough
def test_sound_fleets_are_sound_after_three_rounds() -> None:
    for seed in range(40):
        search = searched(Fabric(seed))
        assert (search.verdicts(), search.rounds) == ([], 3)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 9, 33])
def test_small_and_odd_fleets(count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    assert searched(Fabric(1, names)).verdicts() == []
    dead = Fabric(1, names, dead=lambda a, b, at: names[-1] in (a, b))
    [found] = [each for each in searched(dead).verdicts() if each.level == "bad"]
    assert found.nodes == (names[-1],) or count < 4, found


@pytest.mark.parametrize("count", [3, 4, 5, 6])
@pytest.mark.parametrize("factor", [0.04, 0.5])
def test_a_slow_node_among_few_is_found(count: int, factor: float) -> None:
    """Find it although half or more of all links are its own."""
    names = [f"n{number}" for number in range(count)]
    for bad in names:
        search = searched(Fabric(1, names, rate=lambda a, b, at, bad=bad: factor if bad in (a, b) else 1.0))  # type: ignore[misc]
        assert who(search.verdicts()) == {("node", (bad,), ())}


@pytest.mark.parametrize("factor", [0.1, 0.5])
@pytest.mark.parametrize("count", [5, 6, 7, 8, 9, 12, 33])
def test_slow_nodes_are_found_up_to_two_fifths(count: int, factor: float) -> None:
    """Find them although a third of the nodes has more than half of the links."""
    names = [f"n{number:02}" for number in range(count)]
    for few in range(1, 2 * count // 5 + 1):
        for slow in (names[:few], names[:: count // few][:few]):
            search = searched(Fabric(1, names, rate=lambda a, b, at: factor if {a, b} & set(slow) else 1.0))  # noqa: B023
            assert who(search.verdicts()) == {("node", (node,), ()) for node in slow}, search.verdicts()


def test_nodes_whose_messages_are_late_are_found_up_to_two_fifths() -> None:
    names = [f"n{number:02}" for number in range(9)]
    search = searched(Fabric(1, names, time=lambda a, b, at: 5.0 if {a, b} & set(names[:3]) else 1.0))
    assert who(search.verdicts()) == {("node", (node,), ()) for node in names[:3]}, search.verdicts()


def test_no_group_at_all_comes_to_its_end() -> None:
    search = searched(Fabric(1, silent=lambda nodes, at: True))
    assert search.rounds <= MOST
    assert any(each.level == "bad" for each in search.verdicts())


def test_everyone_meets_everyone_once_and_those_under_suspicion_last() -> None:
    for count in range(2, 20):
        steps = tournament(count)
        met = [pair for step in steps for pair in step]
        assert sorted(met) == [(a, b) for a in range(count) for b in range(a + 1, count)]
        for step in steps:
            assert len({place for pair in step for place in pair}) == 2 * len(step)
    assert tournament(3)[-1] == [(1, 2)]


def test_everyone_is_in_one_pair_and_then_in_another() -> None:
    for count in range(2, 12):
        names = [str(number) for number in range(count)]
        first, second = pairs(names), pairs(names, count // 2 + 1)
        for groups in (first, second):
            assert sorted(node for group in groups for node in group.nodes) == sorted(names)
        if count > 3:
            assert not {group.nodes for group in first} & {group.nodes for group in second}


def test_a_large_fleet_is_together_in_parts_of_64() -> None:
    groups = all_together([str(number) for number in range(200)])
    assert [len(group.nodes) for group in groups] == [50] * 4
    assert max(len(group.nodes) for group in groups) <= LARGEST
    assert [group.nodes for group in all_together(list("abcd"), 2)] == [("a", "c"), ("b", "d")]


def test_digits_tell_every_node_from_every_other() -> None:
    names = [str(number) for number in range(64)]
    assert digits(64) == 3
    result = {name: [] for name in names}  # type: dict[str, list[int]]
    for digit in range(3):
        for value, alike in by_digit(names, digit).items():
            for name in alike:
                result[name].append(value)
    assert len({tuple(values) for values in result.values()}) == 64
