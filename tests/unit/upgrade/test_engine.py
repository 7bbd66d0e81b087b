"""Engine with fake nodes: after any failure or crash, each node has either the old or the new version."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprov.errors import Exit, Refused
from gpuprov.model.lock import read_lock
from gpuprov.model.rollout import Hook, Hooks, Rollout, Window
from gpuprov.ssh.dispatch import CrewLost
from gpuprov.upgrade import engine, running
from gpuprov.upgrade.batches import Batch
from gpuprov.upgrade.context import UpgradeContext
from gpuprov.upgrade.header import Header, ended
from gpuprov.upgrade.journal import Journal
from tests import RECORDED_LOCK
from tests.unit.upgrade.paper import PaperLeases

BATCHES = (Batch("canary", ("n1",), 0), Batch("batch 1", ("n2", "n3"), 0), Batch("batch 2", ("n4",), 0))


class Killed(BaseException):
    """Crash of the controller."""


@dataclass
class World:
    """Fake nodes. An interrupted step leaves its node half changed.

    Attributes:
        fails: (step, node) pairs that fail.
        deaths: ticks at which the controller dies; every step has three.
        out: drained nodes; `most` is their largest number at any time.
    """

    fails: set[tuple[str, str]] = field(default_factory=set)
    deaths: set[int] = field(default_factory=set)
    version: dict[str, str] = field(default_factory=lambda: dict.fromkeys(("n1", "n2", "n3", "n4"), "old"))
    recorded: dict[str, str] = field(default_factory=dict)
    out: set[str] = field(default_factory=set)
    most: int = 0
    ticks: int = 0

    def tick(self) -> None:
        """Count a moment; raise Killed in those in which the controller dies."""
        self.ticks += 1
        if self.ticks in self.deaths:
            raise Killed

    def step(self, name: str) -> Any:
        """Return the function that does a step on nodes, with the failures that the test wants."""

        def take(context: UpgradeContext, nodes: list[str], folder: Path) -> dict[str, str]:
            """Do the step; a failed apply leaves a node half changed."""
            failed = {}
            assert isinstance(context.toward(context.lock, folder).leases, PaperLeases)
            for node in nodes:
                self.tick()
                if (name, node) in self.fails:
                    failed[node] = "broken"
                    if name == "apply":
                        self.version[node] = "half"
                    continue
                self.change(name, node)
            self.tick()
            return failed

        return take

    def change(self, name: str, node: str) -> None:
        """Do a step on one node; check that nothing else may happen there."""
        match name:
            case "record":
                self.recorded.setdefault(node, self.version[node])
            case "drain":
                self.out.add(node)
                self.most = max(self.most, len(self.out))
            case "apply":
                self.version[node] = "half"
                self.tick()
                self.version[node] = "new"
            case "verify":
                assert self.version[node] == "new"
            case "restore":
                self.version[node] = "half"
                self.tick()
                self.version[node] = self.recorded[node]
            case "confirm":
                assert self.version[node] == "old"
            case "resume":
                self.out.discard(node)


@pytest.fixture(autouse=True)
def leases(monkeypatch: pytest.MonkeyPatch) -> PaperLeases:
    """Replace leases and fetching by fakes, and return the leases."""
    leases = PaperLeases()
    monkeypatch.setattr(running.exclusive, "leases_for", lambda context: leases)
    monkeypatch.setattr(engine, "fetch", lambda context, nodes, canaries: None)
    return leases


def run(
    world: World, folder: Path, rollout: Rollout | None = None, course: Any = "forward"
) -> engine.Outcome:
    """Start an upgrade, and resume it each time the controller dies."""
    lock = read_lock(RECORDED_LOCK).model_copy(update={"rollout": rollout})
    context = UpgradeContext(lock, folder, old=lock, source=folder)
    hold = bool(rollout and rollout.on_failure == "hold")
    path = folder / "journal.jsonl"
    with Journal(path) as journal:
        Header(course, hold, BATCHES, folder.name, "a@b").write(journal)
    steps = {name: world.step(name) for name in engine.steps.BY_NAME}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.steps, "BY_NAME", steps)
        while True:
            with Journal(path) as journal:
                try:
                    return engine.Engine(context, journal).go()
                except Killed:
                    continue


forward = st.sampled_from(["record", "snapshot", "drain", "apply", "reboot", "verify", "resume"])
failing = st.sets(st.tuples(forward, st.sampled_from(["n1", "n2", "n3", "n4"])), max_size=3)


@settings(max_examples=150)
@given(failing, st.sets(st.integers(1, 90), max_size=6))
def test_no_node_is_left_between(fails: set[tuple[str, str]], deaths: set[int]) -> None:
    world = World(fails, deaths)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(world, Path(folder))
    assert set(world.version.values()) <= {"old", "new"}
    assert outcome.ends == world.version
    assert world.most <= 2, "more nodes out than a batch has"
    assert set(outcome.reasons) == {node for _, node in fails if node in outcome.reasons}
    assert (outcome.exit_code == Exit.OK) == (set(world.version.values()) == {"new"} and not outcome.reasons)


@settings(max_examples=50)
@given(st.sets(st.integers(1, 60), max_size=6))
def test_a_rollback_that_is_killed_ends_on_the_old_set(deaths: set[int]) -> None:
    world = World(deaths=deaths)
    world.recorded = dict.fromkeys(world.version, "old")
    world.version = dict.fromkeys(world.version, "new")
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(world, Path(folder), course="back")
    assert set(world.version.values()) == set(outcome.ends.values()) == {"old"}


def test_the_first_bad_batch_stops_everything(tmp_path: Path) -> None:
    world = World({("verify", "n2")})
    outcome = run(world, tmp_path)
    assert outcome.ends == {"n1": "new", "n2": "old", "n3": "new", "n4": "old"}
    assert outcome.stopped == "batch 1 failed: n2; allowed failures: 0"
    assert outcome.reasons == {"n2": "verify: broken"}
    assert world.out == set()


def test_no_step_is_taken_on_a_node_that_another_run_took(tmp_path: Path, leases: PaperLeases) -> None:
    world = World()
    leases.lost = {"n3"}
    with pytest.raises(Refused, match=r"^n3: another run took its lease$"):
        run(world, tmp_path)
    assert world.version == {"n1": "new", "n2": "new", "n3": "old", "n4": "old"}
    assert set(world.recorded) == {"n1", "n2"}
    leases.lost = set()
    assert set(run(world, tmp_path).ends.values()) == {"new"}


@pytest.mark.parametrize("step", ["snapshot", "drain", "apply", "reboot", "verify", "resume"])
def test_a_node_that_states_another_lease_leaves_no_other_one_out_of_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leases: PaperLeases, step: str
) -> None:
    world, taken = World(), World.step

    def lying(self: World, name: str) -> Any:
        """Return a step, before which n3 begins to state the lease of another run."""

        def take(context: UpgradeContext, nodes: list[str], folder: Path) -> dict[str, str]:
            """Do the step."""
            if name == step and "n3" in nodes:
                leases.lost = leases.refused = {"n3"}
            return dict(taken(self, name)(context, nodes, folder))

        return take

    monkeypatch.setattr(World, "step", lying)
    for _ in range(2):  # also when it is resumed
        if step == "resume":  # the last one
            assert set(run(world, tmp_path).ends.values()) == {"new"}
            return
        with pytest.raises(Refused, match=r"^n3: another run took its lease$"):
            run(world, tmp_path)
        assert world.version["n2"] == "new"
        assert world.out <= {"n3"}


def test_a_step_that_nobody_can_be_sent_to_is_no_failure_of_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End the run when the scheduler is lost, and continue from there on resume."""
    world, gone = World(), {"apply"}
    taken = World.step

    def step(self: World, name: str) -> Any:
        """Return a step that raises CrewLost if it is one of `gone`."""

        def take(context: UpgradeContext, nodes: list[str], folder: Path) -> dict[str, str]:
            """Do the step, or raise CrewLost."""
            if name in gone:
                raise CrewLost("the scheduler at tls://ctl1:1 no longer answers")
            return dict(taken(self, name)(context, nodes, folder))

        return take

    monkeypatch.setattr(World, "step", step)
    with pytest.raises(CrewLost, match=r"no longer answers; .*gpuprov upgrade --resume"):
        run(world, tmp_path)
    assert set(world.version.values()) == {"old"}
    gone.clear()
    assert set(run(world, tmp_path).ends.values()) == {"new"}


def test_a_held_node_stays_drained(tmp_path: Path) -> None:
    world = World({("verify", "n1")})
    outcome = run(world, tmp_path, Rollout(on_failure="hold"))
    assert (outcome.ends["n1"], world.version["n1"], world.out) == ("held", "new", {"n1"})


def test_a_node_that_stays_out_of_service_says_why_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, str]] = []

    def held(context: UpgradeContext, reasons: Any) -> dict[str, str]:
        said.append(dict(reasons))
        return dict.fromkeys(reasons, "no such node in Slurm")

    monkeypatch.setattr(engine.steps, "held", held)
    rollout = Rollout(on_failure="hold", hooks=Hooks(held=Hook(run="true")))
    for _ in range(2):  # resumed after its end
        outcome = run(World({("verify", "n1")}), tmp_path, rollout)
        assert (outcome.ends["n1"], outcome.reasons) == ("held", {"n1": "verify: broken"})
    assert said == [{"n1": "verify: broken"}]


def test_a_node_that_is_in_service_has_nothing_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.steps, "held", lambda context, reasons: pytest.fail(str(reasons)))
    rollout = Rollout(hooks=Hooks(held=Hook(run="true")))
    assert run(World({("verify", "n1")}), tmp_path, rollout).ends["n1"] == "old"


def test_a_way_back_that_fails_needs_a_hand(tmp_path: Path) -> None:
    outcome = run(World({("apply", "n1"), ("restore", "n1")}), tmp_path)
    assert outcome.ends["n1"] == "stuck"
    assert outcome.exit_code == Exit.FAILED


def test_no_batch_begins_outside_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leases: PaperLeases
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, zone: Any = None) -> datetime:
            return datetime(2026, 1, 31, 12, tzinfo=UTC)

    monkeypatch.setattr(engine, "datetime", Clock)
    with pytest.raises(Refused, match="the window has closed before canary"):
        run(World(), tmp_path, Rollout(window=Window(start="22:00", end="04:00")))
    assert leases.released == 1


def test_a_step_whose_announcement_was_lost_is_taken_again(tmp_path: Path) -> None:
    world = World(deaths={5})
    original = engine.Journal.__init__

    def cut(journal: Journal, path: Path) -> None:
        """Remove the end of the journal before it is read."""
        if world.ticks and path.exists():
            path.write_bytes(path.read_bytes()[:-30])
        original(journal, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.Journal, "__init__", cut)
        assert set(run(world, tmp_path).ends.values()) == {"new"}


def test_a_fetch_that_fails_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(context: UpgradeContext, nodes: list[str], canaries: list[str]) -> None:
        raise Refused("n1: apt-get: 404")

    monkeypatch.setattr(engine, "fetch", fetch)
    world = World()
    with pytest.raises(Refused, match="404"):
        run(world, tmp_path)
    assert world.ticks == 0
    with Journal(tmp_path / "journal.jsonl") as journal:
        assert ended(journal.entries)


def test_a_batch_that_has_begun_is_finished_after_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Close the window while the controller is dead: the resumed run finishes the canary, and no more."""
    world = World(deaths={11})

    class Clock(datetime):
        @classmethod
        def now(cls, zone: Any = None) -> datetime:
            return datetime(2026, 1, 31, 23 if world.ticks < 11 else 12, tzinfo=UTC)

    monkeypatch.setattr(engine, "datetime", Clock)
    with pytest.raises(Refused, match="the window has closed before batch 1"):
        run(world, tmp_path, Rollout(window=Window(start="22:00", end="04:00")))
    assert world.version == {"n1": "new", "n2": "old", "n3": "old", "n4": "old"}
    assert world.out == set()
