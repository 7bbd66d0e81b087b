"""A run's leases on nodes that are only on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuprov.errors import Refused, Unreachable
from gpuprov.model.lock import read_lock
from gpuprov.upgrade import leases
from gpuprov.upgrade.context import UpgradeContext
from gpuprov.upgrade.journal import NAME, Journal
from gpuprov.upgrade.state import Event
from tests import RECORDED_LOCK


class Nodes:
    """Who holds each node; `asked` remembers how many were asked at once."""

    def __init__(self) -> None:
        self.holders: dict[str, str] = {}
        self.asked: list[int] = []

    def act(
        self, lock: object, name: str, arguments: dict[str, Any], options: object, *, read: Any = dict
    ) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        for node, (run, *_) in arguments.items():
            if name == "release":
                if self.holders.get(node) == run:
                    del self.holders[node]
            elif node == "dark":
                answers[node] = Unreachable("no SSH")
            else:
                answers[node] = read({"run": self.holders.setdefault(node, run), "holder": "x@y", "until": 0})
        if name == "take":
            self.asked.append(len(arguments))
        return answers


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    nodes = Nodes()
    monkeypatch.setattr(leases, "act", nodes.act)
    return nodes


def lease_on(*names: str) -> leases.Leases:
    lock = read_lock(RECORDED_LOCK)
    run = Path("runs/mine")
    return leases.Leases(UpgradeContext(lock, run, old=lock, source=run), names)


def test_all_or_none(nodes: Nodes) -> None:
    nodes.holders["n2"] = "other"
    with pytest.raises(Refused, match="run other of x@y is at work on n2"):
        lease_on("n1", "n2", "n3").take()
    assert nodes.holders == {"n2": "other"}


def test_a_node_out_of_reach_is_no_other_run(nodes: Nodes) -> None:
    lease_on("n1", "dark").take()
    assert nodes.holders == {"n1": "mine"}


@pytest.mark.parametrize("end", ["done", "failed", None])
def test_a_lease_that_an_ended_run_left_is_in_nobodys_way(
    nodes: Nodes, end: Event | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node was out of reach when its run ended: the way back need not wait for an hour."""
    monkeypatch.setattr(leases, "state_dir", lambda: tmp_path)
    earlier = tmp_path / "runs/earlier"
    earlier.mkdir(parents=True)
    with Journal(earlier / NAME) as journal:
        journal.write("run", "begun")
        if end:
            journal.write("run", end)
    nodes.holders["n2"] = "earlier"
    mine = lease_on("n1", "n2")
    if end:
        mine.take()
        assert nodes.holders == {"n1": "mine", "n2": "mine"}
    else:
        with pytest.raises(Refused, match="run earlier of x@y is at work on n2"):
            mine.take()


def test_a_controller_that_slept_too_long_does_nothing_more(nodes: Nodes) -> None:
    mine = lease_on("n1", "n2")
    mine.take()
    mine.hold(["n1"])
    nodes.holders["n2"] = "other"
    mine.hold(["n1"])
    with pytest.raises(Refused, match="at work on n2"):
        mine.hold(["n2"])
    assert nodes.holders == {"n2": "other"}


def test_only_nodes_at_hand_are_asked_until_the_lease_ages(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = lease_on("n1", "n2", "n3")
    mine.take()
    mine.hold(["n1"])
    now = leases.time.monotonic()
    monkeypatch.setattr(leases.time, "monotonic", lambda: now + leases.LEASE_S / 2)
    mine.hold(["n1"])
    assert nodes.asked == [3, 1, 3]
