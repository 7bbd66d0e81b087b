"""Active checks: whose turn it is, jobs that are not ended, nodes that are returned in any case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed, Refused
from gpuprov.history.ledger import Event
from gpuprov.model.lock import read_lock
from gpuprov.model.rollout import Hook, Hooks, Rollout
from gpuprov.upgrade.context import FLEET
from gpuprov.upgrade.header import RUN
from gpuprov.upgrade.journal import NAME, Journal, read
from gpuprov.upgrade.repair import share
from gpuprov.upgrade.repair.context import RepairContext
from gpuprov.upgrade.repair.steps import Use
from gpuprov.upgrade.state import out_of_service
from tests import RECORDED_LOCK

NOW = datetime(2026, 1, 31, 4, 17, tzinfo=UTC)
NODES = [f"n{number}" for number in range(1, 11)]


def an_event(node: str, days: float, kind: Any = "accepted") -> Event:
    """Return an event of a node some days ago."""
    return Event((NOW - timedelta(days=days)).isoformat(), "f", node, "SN", "", kind)


def test_a_week_of_daily_runs_tests_the_share_and_each_node_in_turn() -> None:
    events: list[Event] = []
    days: list[int] = []
    for day in range(28):
        now = NOW + timedelta(days=day)
        order, count = share.turn(NODES, events, "50%", now)
        days.append(count)
        events += [Event(now.isoformat(), "f", node, "SN", "", "accepted") for node in order[:count]]
    assert [sum(days[week : week + 7]) for week in range(0, 28, 7)] == [5, 5, 5, 5]
    assert max(days) == 1
    counts = [sum(event.node == node for event in events) for node in NODES]
    assert counts == [2] * 10


def test_the_oldest_test_is_first_and_a_fresh_one_is_left_out() -> None:
    events = [
        an_event("n1", 3),
        an_event("n2", 9),
        an_event("n3", 0.1),
        an_event("n4", 20, "rejected"),
        an_event("n4", 1),
    ]
    order, count = share.turn(["n1", "n2", "n3", "n4", "n5"], events, "100%", NOW)
    assert (order, count) == (["n5", "n2", "n1", "n4"], 1)
    assert share.turn(["n1"], [an_event("n1", 2)], "100%", NOW)[1] == 0
    assert share.turn(["n1"], [an_event("n1", 8)], "1%", NOW)[1] == 1


def test_a_node_without_a_result_does_not_take_the_turns_of_others() -> None:
    events: list[Event] = []
    for day in range(60):
        now = NOW + timedelta(days=day)
        order, count = share.turn(NODES, events, "70%", now)
        events += [
            Event(now.isoformat(), "f", node, "SN", "", "tried" if node == "n7" else "accepted")
            for node in order[:count]
        ]
    counts = [sum(event.node == node for event in events) for node in NODES]
    assert min(counts) >= 5
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("text", ["0%", "101%", "25", "a%", "25%%", ""])
def test_a_share_is_a_percentage(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected a percentage of the fleet a week"):
        share.valid_share(text)


class World(AbstractContextManager["World"]):
    """Nodes, their jobs, leases and hooks.

    Attributes:
        jobs: nodes with a job.
        starts: nodes on which a job starts while they are drained.
        leased: nodes that another run holds.
    """

    def __init__(self) -> None:
        self.jobs: set[str] = set()
        self.starts: set[str] = set()
        self.leased: set[str] = set()
        self.undrained: set[str] = set()
        self.stuck: set[str] = set()
        self.out: set[str] = set()
        self.most = 0
        self.measured: list[str] = []
        self.dies = False
        self.failing: set[str] = set()

    def __exit__(self, *_: object) -> None:
        pass

    def take(self, names: Iterable[str]) -> dict[str, GpuprovError]:
        """Return an error for each node that another run has leased."""
        return {name: Refused("leased by x@y") for name in names if name in self.leased}

    def use(self, context: RepairContext, names: Iterable[str]) -> dict[str, Any]:
        """Return what uses each node's GPUs."""
        return {name: Use(("python (7)",) if name in self.jobs else (), "b", 1.0) for name in names}

    def hook(self, context: RepairContext, moment: str, names: Iterable[str]) -> dict[str, str]:
        """Drain or return nodes, jobs may start meanwhile; return node → why the hook failed."""
        names = list(names)
        if moment == "drain":
            self.out |= set(names)
            self.most = max(self.most, len(self.out))
            self.jobs |= self.starts & set(names)
            return {name: "the hook did not end within 60 s" for name in names if name in self.undrained}
        self.out -= set(names) - self.stuck
        return {name: "no answer" for name in names if name in self.stuck}

    def measure(self, nodes: list[Any], level: str, **_: object) -> Iterator[tuple[str, Any]]:
        """Yield each node with its measurements; it must be drained and without a job. Interrupt if the
        controller is to die.
        """
        for node in nodes:
            assert node.name in self.out, "measured in service"
            assert node.name not in self.jobs, "measured beside a job"
            if self.dies:
                raise KeyboardInterrupt
            self.measured.append(node.name)
            yield node.name, NodeFailed("no library") if node.name in self.failing else {"gpus": []}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Replace leases, hooks and measurements by fake ones, and return them."""
    world = World()
    monkeypatch.setattr(share, "leases_for", lambda context: world)
    monkeypatch.setattr(share, "use", world.use)
    monkeypatch.setattr(share.hooks, "run_hook", world.hook)
    monkeypatch.setattr(share, "measure_there", world.measure)
    monkeypatch.setattr(
        share, "targets", lambda lock, names: [type("T", (), {"name": name}) for name in names]
    )
    return world


@pytest.fixture
def context(tmp_path: Path) -> RepairContext:
    """Return the context of an active check with Slurm's hooks."""
    rollout = share.hurried(Rollout(hooks=Hooks(drain=Hook(use="slurm"), resume=Hook(use="slurm"))))
    lock = read_lock(RECORDED_LOCK).model_copy(update={"rollout": rollout})
    folder = tmp_path / "20260131-041700-accept-9f3a"
    return RepairContext(lock, folder, old=lock, source=folder, lock_path=tmp_path / "fleet.lock.yml")


def check(context: RepairContext, count: int = 2, at_once: int = 1) -> share.Share:
    """Check a share of four nodes; return which were accepted, skipped and stuck."""
    return share.check_share(context, ["n1", "n2", "n3", "n4"], count, "quick", at_once)


def test_nodes_in_use_or_leased_are_left_alone_and_others_follow(
    world: World, context: RepairContext
) -> None:
    world.jobs, world.leased = {"n1"}, {"n3"}
    result = check(context)
    assert (world.measured, world.out, world.most) == (["n2", "n4"], set(), 1)
    assert result.skipped == {"n1": "in use by python (7)", "n3": "leased by x@y"}
    assert share.left_out(context.folder) == []


def test_a_job_that_starts_meanwhile_is_not_disturbed(world: World, context: RepairContext) -> None:
    world.starts, world.undrained = {"n1"}, {"n2"}
    result = check(context)
    assert (world.measured, world.out) == (["n3", "n4"], set())
    assert result.skipped == {"n1": "in use by python (7)", "n2": "drain: the hook did not end within 60 s"}


@pytest.mark.parametrize(("failing", "measured"), [({"n1"}, 3), ({"n1", "n2", "n3", "n4"}, 4)])
def test_for_a_node_without_a_result_another_follows(
    world: World, context: RepairContext, failing: set[str], measured: int
) -> None:
    world.failing = failing
    check(context, count=2, at_once=2)
    assert (len(world.measured), world.out) == (measured, set())


def test_what_another_run_holds_now_is_not_returned(world: World, context: RepairContext) -> None:
    world.stuck = {"n1", "n2"}
    share.check_share(context, ["n1", "n2"], 2, "quick", 2)
    world.stuck, world.leased = set(), {"n1"}
    with pytest.raises(GpuprovError, match=r"^n1: leased by x@y; return them"):
        share.finish(context)
    assert world.out == {"n1"}
    assert share.left_out(context.folder) == ["n1"]


def test_nodes_that_an_unfinished_repair_has_drained_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, end in (("1-2-repair-a", None), ("1-2-upgrade-b", "failed")):
        (tmp_path / name).mkdir()
        with Journal(tmp_path / name / NAME) as journal:
            journal.write("drain", "begun", [f"n{name[-1]}", "back"])
            journal.write("resume", "done", ["back"])
            if end:
                journal.write(RUN, "failed", data="stuck")
    monkeypatch.setattr(share, "run_folders", lambda *verbs: sorted(tmp_path.iterdir()))
    assert share.drained_by_others() == {"na": "1-2-repair-a"}


def test_nodes_that_a_run_of_another_fleet_has_drained_are_not_returned(
    world: World, context: RepairContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stuck = {"n1"}
    check(context)
    (context.folder / FLEET).write_text("/srv/a/fleet.yml")
    monkeypatch.setattr(share, "run_folders", lambda *verbs: [context.folder])
    assert share.unfinished(Path("/srv/a/fleet.yml")) == [context.folder]
    assert share.unfinished(Path("/srv/b/fleet.yml")) == []


def test_never_more_nodes_are_out_than_stated(world: World, context: RepairContext) -> None:
    check(context, count=4, at_once=3)
    assert (len(world.measured), world.most) == (4, 3)
    assert max(len(out) for _, out in out_of_service(read(context.folder))) == 3


def test_an_interruption_returns_the_node(world: World, context: RepairContext) -> None:
    world.dies = True
    with pytest.raises(KeyboardInterrupt):
        check(context)
    assert world.out == set()


def test_what_a_killed_run_left_out_is_returned_by_the_next(
    world: World, context: RepairContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stuck = {"n1"}
    result = check(context)
    assert (set(result.answers), result.stuck) == ({"n1"}, {"n1": "no answer"}), (
        "no further node leaves service"
    )
    assert share.left_out(context.folder) == ["n1"]
    monkeypatch.setattr(share, "run_folders", lambda *verbs: [context.folder])
    assert share.unfinished(None) == [context.folder]
    with pytest.raises(GpuprovError, match=r"^n1: no answer; return them to service by hand"):
        share.finish(context)
    world.stuck = set()
    share.finish(context)
    assert (world.out, share.unfinished(None)) == (set(), [])


def test_a_fleet_without_a_drain_hook_is_refused(context: RepairContext) -> None:
    share.refuse_unhooked(context.lock)
    for rollout in (None, Rollout()):
        with pytest.raises(Refused, match=r"^no drain hook keeps jobs away from a node under test"):
            share.refuse_unhooked(context.lock.model_copy(update={"rollout": rollout}))
    assert not (context.folder / NAME).exists()


def test_a_drain_gives_way_to_jobs() -> None:
    quick = share.hurried(Rollout(hooks=Hooks(drain=Hook(run="true", timeout_s=3600))))
    assert quick.hooks.drain is not None
    assert quick.hooks.drain.timeout_s == 60
    assert share.hurried(Rollout()) == Rollout()
