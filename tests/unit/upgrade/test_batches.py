"""Plan of batches: each node exactly once, no batch too large, units not split, canaries first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprov.errors import InvalidInput, Refused
from gpuprov.model.nodeset import expand
from gpuprov.model.rollout import Rollout, portion
from gpuprov.upgrade.batches import Batch, batches

sizes = st.one_of(st.integers(1, 9), st.integers(1, 100).map(lambda number: f"{number}%"))


@st.composite
def fleets(draw: st.DrawFn) -> tuple[dict[str, list[str]], Rollout]:
    """Return groups with their nodes, and a rollout for them, drawn at random."""
    counts = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    groups = {f"g{at}": [f"g{at}n{number}" for number in range(count)] for at, count in enumerate(counts)}
    nodes = [node for hosts in groups.values() for node in hosts]
    together = []
    rest = draw(st.permutations(nodes))
    for count in draw(st.lists(st.integers(2, 5), max_size=3)):
        unit, rest = rest[:count], rest[count:]
        together += [",".join(unit)] if unit else []
    canary = draw(
        st.one_of(
            st.sampled_from(["one_per_group", "none"]),
            st.lists(st.sampled_from(nodes), min_size=1, max_size=3),
        )
    )
    serial = draw(st.lists(sizes, min_size=1, max_size=3))
    return groups, Rollout(canary=canary, serial=serial, together=together, max_fail=draw(sizes))


@given(fleets())
def test_every_node_moves_once_and_units_move_whole(drawn: tuple[dict[str, list[str]], Rollout]) -> None:
    groups, rollout = drawn
    found = batches(groups, rollout)
    nodes = [node for hosts in groups.values() for node in hosts]
    assert sorted(node for batch in found for node in batch.nodes) == sorted(nodes)
    for text in rollout.together:
        assert len([batch for batch in found if set(text.split(",")) & set(batch.nodes)]) == 1


@given(fleets())
def test_no_batch_is_larger_than_stated_but_for_one_unit(drawn: tuple[dict[str, list[str]], Rollout]) -> None:
    groups, rollout = drawn
    total = sum(map(len, groups.values()))
    moving = [batch for batch in batches(groups, rollout) if batch.name != "canary"]
    largest_unit = max([1, *(text.count(",") + 1 for text in rollout.together)])
    for at, batch in enumerate(moving):
        size = max(1, portion(rollout.serial[min(at, len(rollout.serial) - 1)], total))
        assert len(batch.nodes) <= max(size, largest_unit)
        if len(batch.nodes) > size:
            assert any(set(text.split(",")) == set(batch.nodes) for text in rollout.together)
        assert batch.may_fail == portion(rollout.max_fail, len(batch.nodes))


@given(fleets())
def test_canaries_go_first_and_may_not_fail(drawn: tuple[dict[str, list[str]], Rollout]) -> None:
    groups, rollout = drawn
    found = batches(groups, rollout)
    if rollout.canary == "none":
        assert all(batch.name != "canary" for batch in found)
        return
    assert found[0].name == "canary"
    assert found[0].may_fail == 0
    wanted = rollout.canary if isinstance(rollout.canary, list) else [hosts[0] for hosts in groups.values()]
    assert set(wanted) <= set(found[0].nodes)


def test_ten_percent_then_half() -> None:
    nodes = [f"n{number}" for number in range(20)]
    found = batches({"train": nodes}, Rollout(serial=["10%", "50%"], max_fail="10%"))
    assert [(batch.name, len(batch.nodes), batch.may_fail) for batch in found] == [
        ("canary", 1, 0),
        ("batch 1", 2, 0),
        ("batch 2", 10, 1),
        ("batch 3", 7, 0),
    ]


def test_a_part_of_a_domain_is_refused() -> None:
    with pytest.raises(Refused, match="n3 is left out"):
        batches({"g": ["n1", "n2"]}, Rollout(together=["n[1-3]"]))


@pytest.mark.parametrize(
    "together",
    [["n[1-2]", "n[2-3]"], ["n[2-3]", "n[1-2]"], ["n1,n2", "n4,n3", "n2,n4"], ["n[1-3]", "n[2-3]"]],
)
def test_domains_with_a_common_node_are_one_unit(together: list[str]) -> None:
    nodes = [f"n{number}" for number in range(1, 6)]
    found = batches({"g": nodes}, Rollout(canary="none", together=together))
    assert sorted(node for batch in found for node in batch.nodes) == nodes
    for text in together:
        assert len([batch for batch in found if set(expand(text)) & set(batch.nodes)]) == 1


def test_a_domain_that_does_not_move_is_nobodys_business() -> None:
    assert [batch.nodes for batch in batches({"g": ["n1", "n2"]}, Rollout(together=["m[1-3]"]))] == [
        ("n1",),
        ("n2",),
    ]


def test_not_a_set_of_nodes() -> None:
    with pytest.raises(InvalidInput, match="not a set of nodes"):
        batches({"g": ["n1"]}, Rollout(together=["n[1-"]))


def test_a_domain_moves_as_one_and_is_not_split() -> None:
    groups = {"a": ["n1", "n2", "n3"], "b": ["n4"]}
    rollout = Rollout(canary="none", serial=[1])
    assert batches(groups, rollout, ["n[2-3]"]) == [
        Batch("batch 1", ("n1",), 0), Batch("batch 2", ("n2", "n3"), 0), Batch("batch 3", ("n4",), 0),
    ]  # fmt: skip
    with pytest.raises(Refused, match=r"n\[3-4\] is upgraded as one, and n4 is left out"):
        batches({"a": ["n1", "n2", "n3"]}, rollout, ["n[3-4]"])
