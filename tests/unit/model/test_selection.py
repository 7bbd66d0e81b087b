"""Selection of nodes of a lock by names and node sets."""

from __future__ import annotations

import pytest

from gpuprov.errors import InvalidInput
from gpuprov.model.lock import Lock, read_lock
from gpuprov.model.selection import narrowed
from tests import RECORDED_LOCK


@pytest.fixture
def lock() -> Lock:
    """Lock of two groups: gpu01 to gpu03, and login."""
    [(_, group)] = read_lock(RECORDED_LOCK).groups.items()
    train = group.model_copy(update={"hosts": {f"gpu0{n}": f"192.0.2.{n}" for n in (1, 2, 3)}})
    return Lock(
        inputs="",
        groups={"train": train, "login": group.model_copy(update={"hosts": {"login": "192.0.2.9"}})},
    )


@pytest.mark.parametrize("limit", ["gpu[01-02]", ["gpu02", "gpu01"]])
def test_only_the_selected_nodes_and_their_groups_remain(lock: Lock, limit: str | list[str]) -> None:
    assert list(narrowed(lock, limit).hosts()) == ["gpu01", "gpu02"]
    assert list(narrowed(lock, limit).groups) == ["train"]


@pytest.mark.parametrize("limit", ["", []])
def test_without_a_limit_all_nodes_remain(lock: Lock, limit: str | list[str]) -> None:
    assert list(narrowed(lock, limit).hosts()) == ["gpu01", "gpu02", "gpu03", "login"]


def test_a_name_that_the_lock_does_not_have_is_refused(lock: Lock) -> None:
    """Refuse the whole selection: otherwise a mistyped name would silently leave a node out."""
    with pytest.raises(InvalidInput, match="the lock has no node gpu04, gpu05"):
        narrowed(lock, "gpu[03-05]")


def test_text_that_is_no_node_set_is_refused(lock: Lock) -> None:
    with pytest.raises(InvalidInput, match="not a set of nodes"):
        narrowed(lock, "gpu[01-")
