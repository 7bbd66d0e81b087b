"""Search for the node that slows a large all-reduce: found among any number of nodes, at any place."""

from __future__ import annotations

import pytest

from gpuprov.accept.across.crowd import Crowd

USUAL = 100.0


def search(count: int, slow: int | None) -> Crowd:
    """Search among `count` nodes; groups with the slow one reach 40 GB/s, or all without such a node."""
    names = [f"n{number}" for number in range(count)]
    crowd = Crowd(names, USUAL)
    while groups := crowd.next():
        whole = slow is None and len(groups) == 1
        slowed = {group: whole or (slow is not None and names[slow] in group.nodes) for group in groups}
        crowd.take({group: 40.0 if slowed[group] else 95.0 for group in groups})
    return crowd


@pytest.mark.parametrize("count", [8, 9, 13, 16, 17, 33, 64, 65])
def test_the_slow_node_is_found_at_any_place(count: int) -> None:
    """Find it also if a digit of its number is that of no other node, or of all others but one."""
    for slow in range(count):
        verdict = search(count, slow).verdict
        assert verdict is not None
        assert verdict.nodes == (f"n{slow}",), slow


@pytest.mark.parametrize("count", [8, 9, 17, 64])
def test_a_group_that_is_slow_without_a_slow_node_blames_none(count: int) -> None:
    verdict = search(count, None).verdict
    assert verdict is not None
    assert verdict.nodes == ()
