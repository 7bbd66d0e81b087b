"""Apply with leases on fake nodes: nodes that are not touched, and no further change on a lost node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply import converge as converging
from gpuprov.apply import exclusive
from gpuprov.apply.context import Consent, RunContext
from gpuprov.apply.converge import Convergence
from gpuprov.apply.kernel_modules import once
from gpuprov.apply.lease_manager import LeaseManager
from gpuprov.apply.plan import NodePlan
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.apply.proposal import Proposal
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.errors import Exit
from gpuprov.history.record import of_apply
from gpuprov.model.lock import Lock, Setting
from gpuprov.report.recap import apply_document, conclusion, recap_lines
from tests.unit.apply.paper_nodes import PaperNodes

MINE, OTHER = "20260131-142501-apply-0001", "20260131-142502-upgrade-0002"
NAMES = ("n1", "n2", "n3")


def differs(check: str, *, reboot: bool = False) -> Difference:
    """Return a difference that the role system_tuning corrects."""
    return Difference(check, "this", "that", "high", "system_tuning", reboot)


class World:
    """Fake changes and surveys of nodes; `during` has the actions that run while the named step runs."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = PaperNodes(tmp_path, monkeypatch, *NAMES)
        self.found = {name: NodeDrift(name, "drifted", (differs("sysctl"),)) for name in NAMES}
        self.done: list[tuple[str, list[str]]] = []
        self.during: dict[str, Any] = {}
        self.narrated: list[str] = []
        self.looks = 0
        folder = tmp_path / MINE
        folder.mkdir()
        self.leases = LeaseManager([self.nodes.lock()], folder)
        [(name, group)] = self.nodes.lock().groups.items()
        ssh = {"ssh": Setting(value={"options": {"Port": "22"}}, reason="", source="")}
        lock = Lock(inputs="", groups={name: group.model_copy(update={"settings": ssh})})
        consent = Consent(reboot=True)
        self.run = RunContext(lock, folder, consent=consent, narrate=self.narrated.append, leases=self.leases)
        monkeypatch.setattr(exclusive, "survey", self._survey)
        monkeypatch.setattr(converging, "survey", self._survey)
        monkeypatch.setattr(once, "run_playbook", self._run_playbook)
        monkeypatch.setattr(converging, "run_playbook", self._run_playbook)
        monkeypatch.setattr(converging, "run_guarded", self._run_guarded)
        monkeypatch.setattr(converging, "SETTLE_S", 0.0)

    def converge(self, *roles: str) -> Convergence:
        """Apply roles to the nodes, by default system_tuning, under the leases."""
        plans = [NodePlan(name, roles or ("system_tuning",), False, (), ()) for name in NAMES]
        with self.leases:
            return exclusive.converge_exclusively(
                self.run, self.leases, Proposal(list(self.found.values()), plans)
            )

    def _survey(self, lock: object, names: list[str], **_: object) -> list[NodeDrift]:
        """Return the nodes' drift, after what is to happen before this look."""
        self.looks += 1
        self.during.pop(f"look {self.looks}", lambda: None)()
        return [self.found[name] for name in names]

    def _do(self, step: str, nodes: Any) -> dict[str, NodeOutcome]:
        """Record a step with its nodes; first let happen what is to happen before it."""
        self.done.append((step, sorted(nodes)))
        self.during.pop(step, lambda: None)()
        return {name: NodeOutcome(changed=1, rebooted=step == "reboot") for name in nodes}

    def _run_playbook(self, playbook: str, nodes: Any, *_: Any, **__: Any) -> dict[str, NodeOutcome]:
        return self._do(playbook, nodes)

    def _run_guarded(self, run: RunContext, nodes: Any) -> dict[str, NodeOutcome]:
        return self._do("guarded", nodes)

    def take_over(self, name: str) -> None:
        """Let a node's lease end, and give it to another run."""
        self.nodes.now += 700
        self.nodes.give(name, OTHER)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_node_that_another_run_has_is_refused_and_the_others_are_changed(world: World) -> None:
    world.nodes.give("n2", OTHER)
    result = world.converge()
    assert world.done == [("site", ["n1", "n3"])]
    said = f"leased by x@y, run {OTHER}, since "
    [reported] = world.narrated
    assert reported.startswith(f"n2 left alone: {said}")
    assert (result.failed, result.outcomes["n1"].changed) == (["n2"], 1)
    assert conclusion([], result, None) == Exit.REFUSED
    assert list(recap_lines(result, None))[1].startswith(f"n2  changed=0  REFUSED  {said}")
    [node] = [each for each in apply_document(MINE, [], result, None)["nodes"] if each["name"] == "n2"]
    assert (node["status"], node["reason"].partition(",")[0]) == ("refused", "leased by x@y")
    kept = {node.name: node for node in of_apply(MINE, world.run.lock, Path("lock"), [], result).nodes}
    assert (kept["n2"].status, str(kept["n2"].reason)[:14]) == ("error", "leased by x@y,")
    assert world.nodes.holders == {"n2": OTHER}


def test_a_failure_elsewhere_is_not_hidden_by_a_refusal(world: World) -> None:
    result = Convergence({"n1": NodeOutcome(failed=[{"msg": "broken"}]), "n2": NodeOutcome(refused="leased")})
    assert conclusion([], result, None) == Exit.FAILED


def test_a_node_that_cannot_be_asked_fails_alone(world: World) -> None:
    world.nodes.dark = {"n2"}
    result = world.converge()
    assert world.done == [("site", ["n1", "n3"])]
    assert result.outcomes["n2"].unreachable == "no SSH on port 22: timed out"
    assert conclusion([], result, None) == Exit.UNREACHABLE


def test_a_node_that_another_run_changed_since_the_plan_is_left_alone(world: World) -> None:
    """Refuse a node that drifted further since the plan: the plan would not undo the other run's change."""
    planned = dict(world.found)
    world.found["n2"] = NodeDrift("n2", "drifted", (differs("sysctl"), differs("driver.version")))
    world.found["n3"] = NodeDrift("n3", "in_sync")
    plans = [NodePlan(name, ("system_tuning",), False, (), ()) for name in NAMES]
    with world.leases:
        result = exclusive.converge_exclusively(
            world.run, world.leases, Proposal(list(planned.values()), plans)
        )
    assert world.done == [("site", ["n1", "n3"])]
    assert result.outcomes["n2"].refused == (
        "changed since the plan was made: driver.version; run gpuprov apply again, which makes a new plan"
    )


@pytest.mark.parametrize(("status", "code"), [("unreachable", Exit.UNREACHABLE), ("error", Exit.FAILED)])
def test_a_node_that_does_not_answer_any_more_is_left_alone(world: World, status: Any, code: Exit) -> None:
    planned = dict(world.found)
    world.found["n2"] = NodeDrift("n2", status, reason="it is gone")
    plans = [NodePlan(name, ("system_tuning",), False, (), ()) for name in NAMES]
    with world.leases:
        result = exclusive.converge_exclusively(
            world.run, world.leases, Proposal(list(planned.values()), plans)
        )
    assert world.done == [("site", ["n1", "n3"])]
    assert conclusion([], result, None) == code


def test_nothing_more_is_done_on_a_node_that_was_lost_while_a_step_ran(world: World) -> None:
    world.during["site"] = lambda: world.take_over("n2")
    result = world.converge("system_tuning", "ssh_hardening")
    assert world.done == [("site", ["n1", "n2", "n3"]), ("guarded", ["n1", "n3"])]
    [failure] = result.outcomes["n2"].failed
    assert failure["msg"].startswith("another run took its lease while this one was at work")
    assert conclusion([], result, None) == Exit.FAILED
    assert world.nodes.holders == {"n2": OTHER}


def test_a_node_that_was_lost_is_not_rebooted(world: World) -> None:
    for name in NAMES:
        world.found[name] = replace(world.found[name], drift=(differs("driver.loaded", reboot=True),))
    world.during["look 2"] = lambda: world.take_over("n1")
    world.during["reboot"] = lambda: world.take_over("n3")
    result = world.converge()
    assert world.done == [("site", ["n1", "n2", "n3"]), ("reboot", ["n2", "n3"])]
    assert (result.rebooted, sorted(result.failed)) == (["n2"], ["n1", "n3"])


def test_all_that_was_taken_is_given_back(world: World) -> None:
    held: dict[str, str] = {}
    world.during["site"] = lambda: held.update(world.nodes.holders)
    world.converge()
    assert held == dict.fromkeys(NAMES, MINE)
    assert world.nodes.holders == {}
