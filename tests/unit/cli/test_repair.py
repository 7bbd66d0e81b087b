"""`gpuprov repair`: the plan, and refusals before any node is drained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuprov.cli.common.group import run
from gpuprov.history import History
from gpuprov.history.ledger import Event
from gpuprov.model.lock import read_lock, write_lock
from gpuprov.model.rollout import Hook, Hooks, Rollout, Window
from gpuprov.upgrade.repair import look
from gpuprov.upgrade.repair.ladder import LADDERS, Patient
from tests import RECORDED_LOCK

SICK = Patient(
    "reset", ("errors.xid",), ("Xid 119",), ("0",), "SN7", ("G1",), LADDERS["reset"], present=("G1",)
)
HOOKS = Hooks(drain=Hook(run="true"), resume=Hook(run="true"))


class Fleet:
    """A lock with one node, and what the doctor finds on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.found = folder, SICK
        self.lock = read_lock(RECORDED_LOCK)
        [self.node] = self.lock.hosts()
        self.state()

    def state(self, **rollout: Any) -> None:
        """Write rules of a rollout into the lock."""
        rules = Rollout(**rollout) if rollout else None
        write_lock(self.lock.model_copy(update={"rollout": rules}), self.folder / "fleet.lock.yml")


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Return a fleet whose nodes the doctor finds as its `found` says."""
    monkeypatch.chdir(tmp_path)
    fleet = Fleet(tmp_path)
    monkeypatch.setattr(look, "first", lambda lock, names, _: dict.fromkeys(names, fleet.found))
    return fleet


def test_the_plan_changes_nothing(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["repair", "--plan"]) == 0
    said = capsys.readouterr().err
    assert "reset: drain, then reset of 1 GPU, then reboot  (Xid 119)" in said, "no BMC is stated"
    assert "1 of 1 nodes, at most 1 out of service at a time" in said
    assert not list(fleet.folder.glob("state/**/journal.jsonl"))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("repair --resume --plan", "--plan"),
        ("repair --resume --patience 600", "--patience"),
        ("repair --resume --limit gpu01", "-l"),
        ("repair gpu01 --resume latest", "NODES"),
        ("upgrade --resume latest --plan", "--plan"),
        ("upgrade --resume latest --to new.lock.yml", "--to"),
        ("rollback --resume latest --to x", "--to"),
    ],
)
def test_what_a_resumed_run_would_ignore_is_refused(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], line: str, name: str
) -> None:
    assert run(line.split()) == 2
    assert f"{name} has no effect with --resume: " in capsys.readouterr().err


def test_the_plan_as_json(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["repair", "--plan", "--at-once", "3", "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["schema"], plan["at_once"], plan["window_open"]) == ("gpuprov.repair-plan/1", 3, True)
    assert plan["nodes"][0]["rungs"] == ["reset", "reboot"]
    assert plan["ladders"]["isolate"] == ["reboot", "power"]


def test_jobs_could_start_without_a_drain_hook(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["repair", "--yes"]) == 5
    assert "no drain hook takes" in capsys.readouterr().err


def test_outside_of_the_window_nothing_begins(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.state(hooks=HOOKS, window=Window(start="01:00", end="02:00"))
    monkeypatch.setattr("gpuprov.upgrade.window.is_open", lambda window, now: False)
    assert run(["repair", "--yes"]) == 5
    assert "shut  the window is" in capsys.readouterr().err


def test_without_a_terminal_consent_is_stated(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.state(hooks=HOOKS)
    assert run(["repair"]) == 2
    said = capsys.readouterr().err
    assert f"would repair {fleet.node}" in said
    assert "add --yes" in said


@pytest.mark.parametrize(("verdict", "code"), [("healthy", 0), ("watch", 0), ("unknown", 1)])
def test_a_node_without_a_ladder_is_left_alone(fleet: Fleet, verdict: Any, code: int) -> None:
    fleet.found = Patient(verdict)
    assert run(["repair", "--yes"]) == code


def test_a_third_return_is_in_the_plan(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    from gpuprov.files.runs import now

    with History() as history:
        history.record_events([Event(now(), "f", "other", "SN7", "G1", "mended", "", run) for run in "ab"])
    assert run(["repair", "--plan"]) == 0
    assert "drain, then it stays out: repaired 2 times in 90 days" in capsys.readouterr().err
