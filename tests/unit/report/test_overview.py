"""A fleet on one screen: what changed since the last look comes first; equal nodes share a line."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.lease import Lease
from gpuprov.cli.common.group import run
from gpuprov.doctor.fault import Fault
from gpuprov.doctor.judge import Diagnosis
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.history import History, keep
from gpuprov.history.ledger import Event
from gpuprov.history.record import of_diagnoses, of_survey
from gpuprov.model.lock import Cuda, Lock, read_lock, write_lock
from gpuprov.probe.parse.state import Holding
from gpuprov.report.overview import Overview, overview_document
from tests import RECORDED_LOCK

LOADED = Difference("driver.loaded", "535.309.01", "535.261.03", "error", None, reboot=True)
CLOCKS = Difference("gpu.clocks", 1410, 1395, "error", "gpu_settings", reboot=False)
BROKEN = Fault("broken", "two versions", rule="driver.mismatch")
HINT = Fault("hint", "persistence is off", rule="driver.persistence")


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lock:
    """Lock of three equal nodes in the current folder."""
    monkeypatch.chdir(tmp_path)
    recorded = read_lock(RECORDED_LOCK)
    [(name, group)] = recorded.groups.items()
    hosts = {f"gpu{number}": f"192.0.2.{number}" for number in (1, 2, 3)}
    lock = recorded.model_copy(update={"groups": {name: group.model_copy(update={"hosts": hosts})}})
    write_lock(lock, tmp_path / "fleet.lock.yml")
    return lock


class Fleet:
    """Nodes as the next survey finds them."""

    def __init__(self) -> None:
        self.nodes = {name: NodeDrift(name, "in_sync") for name in ("gpu1", "gpu2", "gpu3")}
        self.leases: dict[str, Lease] = {}
        self.asked: list[list[str]] = []

    def differs(self, name: str, *drift: Difference) -> None:
        """Give a node these differences."""
        self.nodes[name] = NodeDrift(name, "drifted", drift)


@pytest.fixture
def fleet(lock: Lock, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Return a fleet whose survey and leases the test sets."""
    found = Fleet()

    def holders(_: Lock, names: list[str], *__: Any) -> dict[str, Lease]:
        found.asked.append(names)
        return found.leases

    monkeypatch.setattr(
        "gpuprov.drift.survey.survey", lambda _, names, **__: [found.nodes[name] for name in names]
    )
    monkeypatch.setattr("gpuprov.apply.holders.holders", holders)
    return found


def screen(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[str]:
    """Run `gpuprov status --overview`, check its exit code, and return its lines."""
    assert run(["status", "--overview", *words]) == code
    return capsys.readouterr().out.splitlines()


def test_equal_nodes_share_a_line(fleet: Fleet, lock: Lock, capsys: pytest.CaptureFixture[str]) -> None:
    [group] = lock.groups.values()
    first, sums, head, row = screen(capsys)
    assert first == "first look: no earlier one to compare with"
    assert sums == "3 of 3 nodes in sync"
    assert head.split() == ["NODE", "DRIVER", "CUDA", "DRIFT", "DOCTOR", "LEASE"]
    assert row.startswith(f"gpu[1-3]  {group.components.driver.version} ")
    assert "in sync" in row


def test_what_changed_since_the_last_look_comes_first(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    screen(capsys)
    fleet.differs("gpu2", LOADED, CLOCKS)
    said = screen(capsys, code=3)
    assert said[0].startswith("since 20")
    assert said[1].strip().startswith("gpu2 driver.loaded expected 535.309.01, is 535.261.03")
    assert "2 of 3 nodes in sync, 1 differs" in said
    assert any(line.startswith("gpu2") and "535.261.03, lock" in line for line in said)
    assert screen(capsys, code=3)[0].startswith("nothing changed since 20")
    fleet.nodes["gpu2"] = NodeDrift("gpu2", "in_sync")
    assert any("gpu.clocks no longer 1395" in line for line in screen(capsys))


def test_a_look_at_some_nodes_keeps_that_at_the_others(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    screen(capsys)
    screen(capsys, "gpu1")
    fleet.differs("gpu3", CLOCKS)
    assert any("gpu3 gpu.clocks" in line for line in screen(capsys, code=3)[:3])


def test_leases_are_read_of_held_nodes_alone(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    until = datetime.now().astimezone() + timedelta(minutes=5)
    fleet.nodes["gpu1"] = replace(fleet.nodes["gpu1"], held=Holding(60.0, None))
    fleet.leases = {"gpu1": Lease("20260131-142501-apply-9f3a", "anna@ctl1", None, until)}
    said = screen(capsys)
    assert fleet.asked == [["gpu1"]]
    assert "3 of 3 nodes in sync, 1 leased" in said
    assert any(f"anna@ctl1, until {until:%H:%M}, run 20260131-142501-apply-9f3a" in line for line in said)


def test_the_last_doctor_is_shown_by_node(
    fleet: Fleet, lock: Lock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "fleet.lock.yml")
    keep(of_diagnoses([Diagnosis("gpu1", (BROKEN, HINT)), Diagnosis("gpu2", (HINT,))], path), print)
    keep(of_diagnoses([Diagnosis("gpu3")], path), print)
    said = screen(capsys)
    assert "3 of 3 nodes in sync, 1 with faults at the last doctor" in said
    assert any(line.startswith("gpu1 ") and "1 fault, 20" in line for line in said)
    assert any(line.startswith("gpu[2-3] ") and "healthy, 20" in line for line in said)


def test_looks_are_no_runs_of_the_history(
    fleet: Fleet, lock: Lock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.lock.yml"
    kept = of_survey(lock, path, list(fleet.nodes.values()), "apply")
    keep(kept, print)
    said = screen(capsys)
    assert any(line.startswith("last change: apply at 20") and kept.id in line for line in said)
    screen(capsys)
    with History() as history:
        assert [line.id for line in history.lines()] == [kept.id]
        assert history.run("latest").id == kept.id
        assert [line.id for line, _ in history.of_node("gpu1")] == [kept.id]
        assert len(history.looks("status", str(path))) == 3


def test_as_json(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """Check the document of `status --overview -o json` after a node has changed, and exit code 3."""
    screen(capsys)
    fleet.differs("gpu2", LOADED)
    assert run(["status", "--overview", "-o", "json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "gpuprov.overview/1"
    assert document["changes"] == [
        {"name": "gpu2", "new": ["driver.loaded"], "gone": [], "status": "drifted"}
    ]
    assert [node["driver"] for node in document["nodes"]][1] == "535.261.03"


@pytest.mark.parametrize("other", ["--local", "--folded", "--odd", "--watch"])
def test_an_overview_is_of_a_fleet(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--overview", other]) == 2
    assert "leave out --overview" in capsys.readouterr().err


def ledger(tmp_path: Path, *kinds: str, node: str = "gpu2", what: str = "") -> None:
    """Record events of a node in the ledger, later than any look."""
    at = (datetime.now().astimezone() + timedelta(hours=1)).isoformat()
    fleet = str(tmp_path / "fleet.lock.yml")
    with History() as history:
        history.record_events([Event(at, fleet, node, "SN7", "", kind, what, "run-1") for kind in kinds])  # type: ignore[arg-type]


def test_health_is_beside_drift_and_its_changes_come_first(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    screen(capsys)
    ledger(tmp_path, "fault", "out", "reset", what="errors.xid")
    said = screen(capsys)
    assert said[0].startswith("since 20")
    assert said[1:3] == [
        "    gpu2 has the fault errors.xid",
        "    gpu2 was taken out of service by run-1",
    ]
    assert said[3] == "3 of 3 nodes in sync, 1 out of service"
    [row] = [line for line in said if line.startswith("gpu2 ")]
    assert "out of service by run-1; -" in row
    ledger(tmp_path, "mended", "back")
    said = screen(capsys)
    assert "    gpu2 is back in service" in said
    assert not any("out of service by" in line for line in said if line.startswith("gpu"))


def test_a_report_has_health_beside_drift(
    fleet: Fleet, lock: Lock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.lock.yml"
    keep(of_survey(lock, path, list(fleet.nodes.values())), print)
    keep(of_diagnoses([Diagnosis("gpu1", (BROKEN, HINT))], str(path)), print)
    ledger(tmp_path, "out")
    assert run(["report"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("gpu1 at the last doctor, 20")
    assert said[0].endswith(": driver.mismatch")
    assert said[1] == "gpu2 out of service by run-1"


def test_every_toolkit_of_cuda_is_in_the_document(lock: Lock) -> None:
    [group] = lock.groups.values()
    toolkits = {"13.0": "13.0.2", "12.8": "12.8.1"}
    cuda = Cuda.model_construct(version="13.0.2", default="13.0", toolkits=toolkits)
    components = group.components.model_copy(update={"cuda": cuda})
    lock = lock.model_copy(update={"groups": {"train": group.model_copy(update={"components": components})}})
    document = overview_document(Overview(lock, [NodeDrift("gpu1", "in_sync")], {}, {}, None, [], None))
    assert document["nodes"][0]["locked"]["cuda"] == "13.0.2, 12.8.1"
