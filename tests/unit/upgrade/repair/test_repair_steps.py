"""Steps of a repair: waits for jobs, unreachable nodes, boots done once, events for the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.context import RunContext
from gpuprov.apply.converge import Convergence
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.errors import NodeFailed, Unreachable
from gpuprov.history.ledger import worst
from gpuprov.model.lock import read_lock
from gpuprov.model.rollout import Hook, Hooks, Rollout
from gpuprov.report.repair import repair_journal_lines, repair_plan_lines
from gpuprov.upgrade.journal import NAME, Journal, read
from gpuprov.upgrade.repair import power, steps
from gpuprov.upgrade.repair.context import RepairContext
from gpuprov.upgrade.repair.finish import events_of
from gpuprov.upgrade.repair.header import RepairHeader
from gpuprov.upgrade.repair.ladder import LADDERS, Patient, Rung
from gpuprov.upgrade.repair.state import STEPS, progress_by_node
from tests import RECORDED_LOCK

SICK = Patient(
    "reset", ("errors.xid",), ("Xid 119",), ("00000000:CA:00.0",), "SN7", ("G1",), LADDERS["reset"]
)
NODE = "n1"
Says = Mapping[str, Any]


@pytest.fixture
def context(tmp_path: Path) -> RepairContext:
    """Return the context of a repair of one sick node."""
    lock = read_lock(RECORDED_LOCK)
    with Journal(tmp_path / NAME) as journal:
        RepairHeader({NODE: SICK}, 1, None, 0, "a@b").write(journal)
    return RepairContext(lock, tmp_path, old=lock, source=tmp_path, lock_path=tmp_path / "fleet.lock.yml")


def answering(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
    """Let the node give these answers to `use`, the last one again and again."""
    left = list(answers)

    def use(context: RepairContext, names: list[str]) -> dict[str, Any]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return dict.fromkeys(names, answer)

    monkeypatch.setattr(steps, "use", use)


def with_hook(context: RepairContext) -> RepairContext:
    """Return the context with a drain hook that succeeds."""
    rollout = Rollout(hooks=Hooks(drain=Hook(run="true")))
    lock = context.lock.model_copy(update={"rollout": rollout})
    return RepairContext(lock, context.folder, old=lock, source=context.folder, lock_path=context.lock_path)


def used(*jobs: str, boot: str = "b1") -> steps.Use:
    """Return the answer of a node on which these jobs use GPUs."""
    return steps.Use(jobs, boot, 1.0)


def test_every_step_has_a_function() -> None:
    assert all(callable(steps.named(step)) for step in STEPS)
    with pytest.raises(KeyError):
        steps.named("idle-other")


def test_a_wait_ends_when_the_job_does(context: RepairContext, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(steps, "AGAIN_S", 0)
    answering(monkeypatch, used("python (7)"), used("python (7)"), used())
    with Journal(context.folder / "other") as journal:
        RepairHeader({NODE: SICK}, 1, None, 600, "a@b").write(journal)
    (context.folder / "other").rename(context.folder / NAME)
    assert steps.idle("reset", replace(context, narrate=said.append), [NODE], context.folder).failed == {}
    assert said == ["waiting: n1: the GPUs are in use by python (7)"]


def test_a_wait_gives_up_with_the_names_of_the_jobs(
    context: RepairContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, used(*(f"python ({pid})" for pid in range(10))))
    [said] = steps.idle("reset", context, [NODE], context.folder).failed.values()
    assert said.startswith("the GPUs are in use by python (0), python (1)")
    assert said.endswith("python (7) and 2 more")


def test_a_node_that_does_not_answer_is_free_only_if_that_is_known(
    context: RepairContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, Unreachable("no route"))
    [said] = steps.idle("power", context, [NODE], context.folder).failed.values()
    assert said == "no route; whether jobs run there is not known, and no drain hook has waited for them"
    assert steps.idle("power", with_hook(context), [NODE], context.folder).failed == {}
    with Journal(context.folder / NAME) as journal:
        journal.write("reboot", "begun", [NODE])
    assert steps.idle("power", context, [NODE], context.folder).failed == {}
    answering(monkeypatch, NodeFailed("no Python 3"))
    assert steps.idle("power", with_hook(context), [NODE], context.folder).failed == {NODE: "no Python 3"}


def waiting_for_two(
    monkeypatch: pytest.MonkeyPatch, context: RepairContext, *rounds: dict[str, Any]
) -> list[str]:
    """Wait for two nodes that give these answers one after another, the last one repeatedly; return those
    still in use.
    """
    left, clock = list(rounds), iter(range(100))
    monkeypatch.setattr(steps, "AGAIN_S", 0)
    monkeypatch.setattr(steps.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(steps, "use", lambda context, names: left.pop(0) if len(left) > 1 else left[0])
    with Journal(context.folder / "other") as journal:
        RepairHeader({NODE: SICK, "n2": SICK}, 2, None, 5, "a@b").write(journal)
    (context.folder / "other").rename(context.folder / NAME)
    return list(steps.idle("power", context, [NODE, "n2"], context.folder).failed)


def test_a_node_that_is_silent_at_first_is_not_free_after_a_wait_for_another(
    context: RepairContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {NODE: Unreachable("no route"), "n2": used("python (7)")}
    assert waiting_for_two(monkeypatch, context, first, {"n2": used()}) == [NODE]


def test_a_node_in_use_that_falls_silent_is_not_free(
    context: RepairContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {NODE: used("python (7)"), "n2": used("python (7)")}
    rounds = first, {NODE: Unreachable("no route"), "n2": used()}, {NODE: Unreachable("no route")}
    assert waiting_for_two(monkeypatch, with_hook(context), *rounds) == [NODE]


@pytest.mark.parametrize("rung", ["reboot", "power"])
def test_a_node_that_cannot_say_whether_it_has_jobs_takes_no_rung(
    context: RepairContext, monkeypatch: pytest.MonkeyPatch, done: list[str], rung: Rung
) -> None:
    answering(monkeypatch, NodeFailed("no Python 3"))
    assert steps.named(rung)(context, [NODE], context.folder).busy == {NODE: "no Python 3"}
    assert done == []


def test_a_boot_is_not_repeated_after_the_controller_died(
    context: RepairContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebooted: list[str] = []

    def reboot(run: RunContext, names: list[str]) -> Convergence:
        rebooted.extend(names)
        return Convergence(rebooted=list(names))

    monkeypatch.setattr(steps, "reboot_nodes", reboot)
    answering(monkeypatch, used(boot="b1"))
    steps.idle("reboot", context, [NODE], context.folder)
    assert steps.reboot(context, [NODE], context.folder).failed == {}
    assert rebooted == [NODE]
    answering(monkeypatch, used(boot="b2"))
    steps.reboot(context, [NODE], context.folder)
    assert rebooted == [NODE]
    cycled: list[Mapping[str, object]] = []
    monkeypatch.setattr(power, "cycle", lambda bmcs, answering: cycled.append(bmcs) or {})
    steps.idle("power", context, [NODE], context.folder)
    answering(monkeypatch, used(boot="b3"))
    steps.cycle(context, [NODE], context.folder)
    assert cycled == [{}]


@pytest.fixture
def done(context: RepairContext, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nodes that were rebooted or whose power was cycled."""
    found: list[str] = []

    def reboot(run: RunContext, names: list[str]) -> Convergence:
        found.extend(names)
        return Convergence(rebooted=list(names))

    def cycle(bmcs: Mapping[str, object], answering: list[str]) -> dict[str, str]:
        found.extend(bmcs)
        return {}

    monkeypatch.setattr(steps, "reboot_nodes", reboot)
    monkeypatch.setattr(steps, "await_nodes", lambda *_: None)
    monkeypatch.setattr(power, "cycle", cycle)
    context.groups[NODE] = next(iter(context.groups.values()))
    return found


@pytest.mark.parametrize("rung", ["reboot", "power"])
def test_a_job_that_began_after_the_wait_is_not_ended(
    context: RepairContext, monkeypatch: pytest.MonkeyPatch, done: list[str], rung: Rung
) -> None:
    """Ask again before each rung: others were waited for, or the controller has died since."""
    answering(monkeypatch, used(boot="b1"))
    assert steps.idle(rung, context, [NODE], context.folder).failed == {}
    answering(monkeypatch, used("python (7)", boot="b1"))
    result = steps.named(rung)(context, [NODE], context.folder)
    assert (result.failed, done) == ({}, [])
    assert result.busy == {NODE: "the GPUs are in use by python (7)"}
    answering(monkeypatch, used("python (7)", boot="b2"))
    assert steps.named(rung)(context, [NODE], context.folder).busy == {}


@pytest.mark.parametrize("rung", ["reboot", "power"])
def test_a_node_that_does_not_answer_takes_the_rung_that_it_was_free_for(
    context: RepairContext, monkeypatch: pytest.MonkeyPatch, done: list[str], rung: Rung
) -> None:
    answering(monkeypatch, Unreachable("no route"))
    assert steps.named(rung)(context, [NODE], context.folder).busy == {}
    assert done == [NODE]


def test_a_node_that_does_not_reboot_has_a_reason(
    context: RepairContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, used(boot="b1"))
    result = Convergence()
    monkeypatch.setattr(steps, "reboot_nodes", lambda run, names: result)
    assert steps.reboot(context, [NODE], context.folder).failed == {NODE: "the node was not rebooted"}
    result.outcomes[NODE] = NodeOutcome(unreachable="no SSH on\nport 22")
    [said] = steps.reboot(context, [NODE], context.folder).failed.values()
    assert "\n" not in said
    assert said.startswith("no SSH on")


def test_answers_are_untrusted() -> None:
    """Check that control characters and long texts in a node's answer are removed, and wrong structures
    refused.
    """
    found = steps._read_use({"jobs": ["evil\x1b[2J\nname (7)", "x" * 500], "boot": "b\x00", "at": 3})
    assert all(job.isprintable() and len(job) <= 100 for job in found.jobs)
    for answer in ({}, {"jobs": [], "boot": "", "at": "nan"}, {"jobs": 7, "boot": "", "at": 1}):
        with pytest.raises((KeyError, TypeError, ValueError, NodeFailed)):
            steps._read_use(answer)


def test_the_ledger_has_what_the_journal_has(context: RepairContext) -> None:
    with Journal(context.folder / NAME) as journal:
        steps_done = ("drain", "idle-reset", "reset", "reset", "look-reset", "accept-reset", "resume")
        for step in steps_done:
            journal.write(step, "begun", [NODE])
            journal.write(step, "done", [NODE])
    entries = read(context.folder)
    known = progress_by_node(entries, {NODE: SICK})
    assert known[NODE].end == "mended"
    found = events_of(context, entries, known)
    assert [(each.kind, each.machine, each.unit) for each in found] == [
        (kind, "SN7", "G1") for kind in ("out", "reset", "mended", "back")
    ]
    node, gpu = sorted(worst(found), key=lambda each: each.is_gpu)
    assert (node.counts["reset"], gpu.counts["mended"], gpu.is_out) == (1, 1, False)
    lines = list(repair_journal_lines(context.about, entries))
    assert lines[1].endswith("n1 reset: drain, then reset of 1 GPU, then reboot, then power cycle  (Xid 119)")
    assert lines[-1] == "at most 1 of 1 nodes out of service at a time"


def test_the_plan_in_words() -> None:
    stated = {
        "gpu01": SICK,
        "gpu02": SICK,
        "gpu03": Patient("watch", faults=("a hint",)),
        "gpu04": Patient("unknown", unknown=("bus.lost",)),
        "gpu05": Patient("reset", faults=("Xid 119",), stays="repaired 2 times"),
    }
    assert list(repair_plan_lines(stated, 2, ["gpu09"])) == [
        "gpu[01-02] reset: drain, then reset of 1 GPU, then reboot, then power cycle  (Xid 119)",
        "gpu03 watch: nothing  (a hint)",
        "gpu04 unknown: nothing  (could not judge: bus.lost)",
        "gpu05 reset: drain, then it stays out: repaired 2 times  (Xid 119)",
        "3 of 5 nodes, at most 2 out of service at a time; gpu09 is out already",
    ]
