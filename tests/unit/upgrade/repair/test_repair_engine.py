"""Engine of repairs with fake nodes: no job is ended, and never more nodes are out than stated."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprov.errors import Exit, Refused
from gpuprov.model.lock import read_lock
from gpuprov.model.rollout import Rollout, Window
from gpuprov.upgrade import running
from gpuprov.upgrade.journal import Journal
from gpuprov.upgrade.repair import engine
from gpuprov.upgrade.repair.context import RepairContext
from gpuprov.upgrade.repair.header import RepairHeader
from gpuprov.upgrade.repair.ladder import LADDERS, Patient, Rung, Verdict
from gpuprov.upgrade.repair.result import Result
from gpuprov.upgrade.repair.state import ACCEPT, IDLE, LOOK, RUNGS, End, progress_by_node, steps_of
from gpuprov.upgrade.running import Outcome
from gpuprov.upgrade.state import out_of_service
from tests import RECORDED_LOCK
from tests.unit.upgrade.paper import PaperLeases

NAMES = ("n1", "n2", "n3", "n4")


class Killed(BaseException):
    """Crash of the controller."""


@dataclass
class World:
    """Fake nodes.

    Attributes:
        needs: node → the rung that mends it; None if no rung does.
        jobs: nodes whose GPUs a job uses.
        appears: node → the step at whose beginning a job starts there.
        deaths: ticks at which the controller dies; every step has two for each node.
        out: drained nodes; `most` is their largest number at any time.
        tried: rungs that were done, in order.
    """

    needs: dict[str, Rung | None]
    jobs: set[str] = field(default_factory=set)
    appears: dict[str, str] = field(default_factory=dict)
    rejected: set[tuple[str, Rung]] = field(default_factory=set)
    deaths: set[int] = field(default_factory=set)
    out: set[str] = field(default_factory=set)
    most: int = 0
    ticks: int = 0
    mended: set[str] = field(default_factory=set)
    tried: dict[str, list[Rung]] = field(default_factory=dict)
    bundled: set[str] = field(default_factory=set)
    killed_jobs: set[str] = field(default_factory=set)

    def tick(self) -> None:
        """Count a moment; raise Killed in those in which the controller dies."""
        self.ticks += 1
        if self.ticks in self.deaths:
            raise Killed

    def step(self, name: str, context: RepairContext, nodes: list[str], folder: Path) -> Result:
        """Do a step on nodes, with a moment before and after each; return the failures."""
        result = Result({})
        for node in nodes:
            self.tick()
            if self.appears.get(node) == name:
                self.jobs.add(node)
            if reason := self.change(name, node):
                result.failed[node] = reason
            self.tick()
        return result

    def change(self, name: str, node: str) -> str:
        """Do a step on one node; return why it failed, or an empty text."""
        if name == "drain":
            self.out.add(node)
            self.most = max(self.most, len(self.out))
        elif name == "resume":
            self.out.discard(node)
        elif name == "bundle":
            self.bundled.add(node)
        elif name.startswith(IDLE):
            return "the GPUs are in use by python (7)" if node in self.jobs else ""
        elif name.startswith(LOOK):
            return "" if node in self.mended else "GPU 0 is lost"
        elif name.startswith(ACCEPT):
            return "accept: slow" if (node, name.removeprefix(ACCEPT)) in self.rejected else ""
        else:
            self.rung(node, name)  # type: ignore[arg-type]
        return ""

    def rung(self, node: str, name: Rung) -> None:
        """Try a rung on a node, which must be out of service; record jobs that it ended."""
        assert node in self.out, f"{name} of {node}, which is in service"
        if node in self.jobs:
            self.killed_jobs.add(node)
        done = self.tried.setdefault(node, [])
        if name not in done:
            done.append(name)
        if self.needs[node] is not None and RUNGS.index(name) >= RUNGS.index(self.needs[node]):
            self.mended.add(node)


@pytest.fixture(autouse=True)
def leases(monkeypatch: pytest.MonkeyPatch) -> PaperLeases:
    """Replace the leases of repairs by fake ones, and return them."""
    leases = PaperLeases()
    monkeypatch.setattr(running.exclusive, "leases_for", lambda context: leases)
    return leases


def patients(verdicts: Mapping[str, Verdict], **changes: Any) -> dict[str, Patient]:
    """Return patients with the ladders of verdicts."""
    return {node: Patient(verdict, rungs=LADDERS[verdict], **changes) for node, verdict in verdicts.items()}


def run(
    world: World,
    folder: Path,
    stated: Mapping[str, Patient],
    *,
    at_once: int = 1,
    rollout: Rollout | None = None,
    away: tuple[str, ...] = (),
) -> Outcome[End]:
    """Start a repair, and resume it each time the controller dies; return its outcome."""
    lock = read_lock(RECORDED_LOCK).model_copy(update={"rollout": rollout})
    context = RepairContext(lock, folder, old=lock, source=folder, lock_path=folder / "fleet.lock.yml")
    path = folder / "journal.jsonl"
    if not path.exists():
        with Journal(path) as journal:
            RepairHeader(stated, at_once, None, 0, "a@b", away).write(journal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.steps, "named", lambda name: partial(world.step, name))
        while True:
            with Journal(path) as journal:
                try:
                    return engine.RepairEngine(context, journal).go()
                except Killed:
                    continue


def most_out(folder: Path) -> int:
    """Return the largest number of nodes that were out at a time, from the journal."""
    with Journal(folder / "journal.jsonl") as journal:
        return max((len(out) for _, out in out_of_service(journal.entries)), default=0)


rungs = st.sampled_from([*RUNGS, None])
needs = st.fixed_dictionaries(dict.fromkeys(NAMES, rungs))
verdicts = st.fixed_dictionaries({name: st.sampled_from(list(LADDERS)) for name in NAMES})
steps = st.sampled_from(["drain", *(step for rung in RUNGS for step in steps_of(rung))])


@settings(max_examples=60)
@given(
    needs,
    verdicts,
    st.integers(1, 3),
    st.dictionaries(st.sampled_from(NAMES), steps.filter(lambda step: step not in RUNGS), max_size=2),
    st.sets(st.integers(1, 120), max_size=6),
)
def test_whatever_dies_and_whoever_works(
    wants: dict[str, Rung | None],
    found: dict[str, Verdict],
    at_once: int,
    appears: dict[str, str],
    deaths: set[int],
) -> None:
    """End no job, keep the limit, take each rung after the one before, and state the true end."""
    # A job starts only before a wait: afterwards the node is drained.
    appears = {node: step for node, step in appears.items() if step == "drain" or step.startswith(IDLE)}
    world = World(wants, deaths=deaths, appears=appears)
    stated = patients(found)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(world, Path(folder), stated, at_once=at_once)
        assert most_out(Path(folder)) <= at_once
    assert world.most <= at_once
    assert world.killed_jobs == set()
    for node, end in outcome.ends.items():
        ladder = list(stated[node].rungs)
        tried = world.tried.get(node, [])
        assert tried == ladder[: len(tried)]
        assert (end == "mended") == (node in world.mended and node not in world.out and bool(tried))
        assert (node in world.out) == (end == "out")
        assert (node in world.bundled) == (end == "out")
    assert (outcome.exit_code == Exit.OK) == (not outcome.reasons and outcome.stopped is None)


@pytest.mark.parametrize("death", range(1, 41))
def test_a_controller_that_is_killed_at_any_point_ends_as_one_that_is_not(tmp_path: Path, death: int) -> None:
    wants: dict[str, Rung | None] = {"n1": "power", "n2": "reset", "n3": None}
    stated = patients({"n1": "reset", "n2": "reset", "n3": "isolate"})
    world = World(wants, deaths={death})
    outcome = run(world, tmp_path, stated, at_once=1)
    assert outcome.ends == {"n1": "mended", "n2": "mended", "n3": "out"}
    assert world.tried == {"n1": ["reset", "reboot", "power"], "n2": ["reset"], "n3": ["reboot", "power"]}
    assert (world.out, world.bundled, world.most) == ({"n3"}, {"n3"}, 1)
    assert world.ticks >= death, "the controller was not killed"


@pytest.mark.parametrize("verdict", LADDERS)
def test_the_ladder_of_each_verdict(tmp_path: Path, verdict: Verdict) -> None:
    world = World({"n1": None})
    outcome = run(world, tmp_path, patients({"n1": verdict}))
    assert tuple(world.tried.get("n1", ())) == LADDERS[verdict]
    assert outcome.ends == {"n1": "out" if LADDERS[verdict] else "left"}


def test_a_node_that_stays_out_takes_the_place_of_another(tmp_path: Path) -> None:
    world = World({"n1": None, "n2": "reset"})
    outcome = run(world, tmp_path, patients({"n1": "reset", "n2": "reset"}))
    assert outcome.ends == {"n1": "out", "n2": "left"}
    assert outcome.stopped == (
        "n2 not begun: n1 is out of service, at most 1 may be; return them, or give --at-once 2"
    )
    assert "n2" not in world.tried


def test_a_node_that_an_earlier_run_left_out_counts(tmp_path: Path) -> None:
    world = World({"n1": "reset"})
    outcome = run(world, tmp_path, patients({"n1": "reset"}), away=("n9",))
    assert (outcome.ends, world.tried) == ({"n1": "left"}, {})
    assert "n9 is out of service" in str(outcome.stopped)


def test_a_third_return_is_drained_and_stays_out(tmp_path: Path) -> None:
    world = World({"n1": "reset"})
    outcome = run(world, tmp_path, {"n1": Patient("reset", stays="repaired 2 times in 90 days")})
    assert (outcome.ends, world.tried) == ({"n1": "out"}, {})
    assert outcome.reasons == {"n1": "repaired 2 times in 90 days"}
    assert world.bundled == {"n1"}


def test_a_rejected_acceptance_leads_to_the_next_rung(tmp_path: Path) -> None:
    world = World({"n1": "reset"}, rejected={("n1", "reset")})
    outcome = run(world, tmp_path, patients({"n1": "reset"}))
    assert (outcome.ends, world.tried) == ({"n1": "mended"}, {"n1": ["reset", "reboot"]})


def test_a_node_in_use_is_left_as_it_was(tmp_path: Path) -> None:
    world = World({"n1": "reset"}, jobs={"n1"})
    outcome = run(world, tmp_path, patients({"n1": "reset"}))
    assert (outcome.ends, world.tried, world.out) == ({"n1": "busy"}, {}, set())
    assert outcome.reasons == {"n1": "idle-reset: the GPUs are in use by python (7)"}


@pytest.mark.parametrize(
    ("rung", "tried", "end", "out"),
    [("reset", [], "busy", set()), ("reboot", ["reset"], "out", {"n1"})],
    ids=["before any rung", "after one that did not help"],
)
def test_a_job_that_begins_after_the_wait_ends_the_repair_of_its_node(
    tmp_path: Path, rung: Rung, tried: list[str], end: str, out: set[str]
) -> None:
    """Return the node to service as it was before any rung; leave a sick one out, with its bundle."""

    class Late(World):
        """Nodes on which a job starts between the wait and a rung."""

        def step(self, name: str, context: RepairContext, nodes: list[str], folder: Path) -> Result:
            """Do a step; at the rung the GPUs are in use again."""
            if name == rung:
                return Result({}, busy=dict.fromkeys(nodes, "the GPUs are in use by python (7)"))
            return super().step(name, context, nodes, folder)

    world = Late({"n1": "power"})
    outcome = run(world, tmp_path, patients({"n1": "reset"}))
    assert (outcome.ends, world.tried.get("n1", []), world.out) == ({"n1": end}, tried, out)
    assert world.bundled == out
    assert outcome.reasons == {"n1": f"idle-{rung}: the GPUs are in use by python (7)"}
    with Journal(tmp_path / "journal.jsonl") as journal:
        known = progress_by_node(journal.entries, patients({"n1": "reset"}))
    assert known["n1"].tried == tuple(tried)


def test_a_window_that_closes_stops_before_the_next_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leases: PaperLeases
) -> None:
    world = World({"n1": "power", "n2": "reset"})
    rollout = Rollout(window=Window(start="01:00", end="02:00"))
    times = iter([True])
    monkeypatch.setattr(engine, "is_open", lambda window, now: next(times, False))
    with pytest.raises(
        Refused, match=r"^the window has closed before n2; expected .*gpuprov repair --resume"
    ):
        run(world, tmp_path, patients({"n1": "reset", "n2": "reset"}), rollout=rollout)
    assert (world.tried, world.out) == ({"n1": ["reset", "reboot", "power"]}, set())
    assert leases.released
    monkeypatch.setattr(engine, "is_open", lambda window, now: True)
    assert run(world, tmp_path, {}, rollout=rollout).ends == {"n1": "mended", "n2": "mended"}


def test_nothing_is_done_on_a_node_that_another_run_took(tmp_path: Path, leases: PaperLeases) -> None:
    world = World({"n1": "reset"})
    leases.lost = {"n1"}
    with pytest.raises(Refused, match=r"^n1: another run took its lease$"):
        run(world, tmp_path, patients({"n1": "reset"}))
    assert (world.tried, world.out) == ({}, set())


@pytest.mark.parametrize("step", ["drain", *steps_of("reset")])
def test_a_node_that_states_another_lease_ends_no_repair_of_others(
    tmp_path: Path, leases: PaperLeases, step: str
) -> None:
    class Lying(World):
        """Nodes of which n1 states the lease of another run, from the given step on."""

        def step(self, name: str, context: RepairContext, nodes: list[str], folder: Path) -> Result:
            """Do a step on nodes."""
            if name == step and "n1" in nodes:
                leases.lost = leases.refused = {"n1"}
            return super().step(name, context, nodes, folder)

    world = Lying({"n1": "reset", "n2": "reset", "n3": "reset"})
    for _ in range(2):  # also when it is resumed
        with pytest.raises(Refused, match=r"^n1: another run took its lease$"):
            run(world, tmp_path, patients(dict.fromkeys(world.needs, "reset")), at_once=2)
        assert world.mended >= {"n2", "n3"}
        assert world.out == {"n1"}


def test_nor_of_those_that_follow_it(tmp_path: Path, leases: PaperLeases) -> None:
    world = World({"n1": "reset", "n2": "reset"})
    leases.lost = {"n1"}
    with pytest.raises(Refused, match=r"^n1: another run took its lease$"):
        run(world, tmp_path, patients({"n1": "reset", "n2": "reset"}))
    assert (world.mended, world.out) == ({"n2"}, set())
