"""`gpuprov drift`, `history` and `report` with recorded answers of nodes."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import gpuprov.drift.survey
from gpuprov.cli.common.group import run
from gpuprov.errors import Exit, GpuprovError, Unreachable
from gpuprov.history import History
from gpuprov.model.lock import Lock, read_lock, write_lock
from gpuprov.probe.facts import Facts
from tests import H200, RECORDED_LOCK

Answers = dict[str, Facts | GpuprovError]


def facts(**collectors: Any) -> Facts:
    """Return the recorded facts of a node with H200, with other answers of collectors."""
    answer = json.loads((H200 / "facts.json").read_text())
    smi = {"rc": 0, "stdout": (H200 / "q.xml").read_text(), "stderr": ""}
    answer["collectors"] |= {"smi": smi, **copy.deepcopy(collectors)}
    return Facts.from_answer(answer)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Answers:
    """The answer of each node; a lock with these nodes is in the current folder."""
    answers: Answers = {"gpu1": facts(), "gpu2": facts(), "gpu3": facts()}

    def gather(
        lock: Lock, names: list[str], *_: Any, **__: Any
    ) -> Iterator[tuple[str, Facts | GpuprovError]]:
        yield from ((name, answers[name]) for name in names)

    monkeypatch.setattr(gpuprov.drift.survey, "gather", gather)
    monkeypatch.chdir(tmp_path)
    [(name, group)] = read_lock(RECORDED_LOCK).groups.items()
    hosts = dict.fromkeys(answers, "127.0.0.1")
    write_lock(
        Lock(inputs="0", groups={name: group.model_copy(update={"hosts": hosts})}), Path("fleet.lock.yml")
    )
    return answers


def said(capsys: pytest.CaptureFixture[str], *words: str, code: Exit = Exit.OK) -> str:
    """Run a command line, check its exit code, and return its standard output."""
    assert run(list(words)) == code
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: str, code: Exit = Exit.OK) -> dict[str, Any]:
    """Run a command line with JSON output, check its exit code, and return the document."""
    result: dict[str, Any] = json.loads(said(capsys, *words, "-o", "json", code=code))
    return result


@pytest.mark.usefixtures("nodes")
def test_drift_is_folded_and_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "drift", code=Exit.DRIFT).splitlines()
    assert "gpu[1-3] system.os expected debian12, is ubuntu24.04" in lines
    [line] = document(capsys, "history")["runs"]
    assert line["counts"] == {"in_sync": 0, "drifted": 3, "unreachable": 0, "error": 0}
    assert said(capsys, "report").splitlines() == lines


def test_a_baseline_leaves_only_what_is_new(nodes: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    first = document(capsys, "drift", code=Exit.DRIFT)
    assert said(capsys, "drift", "--baseline", "latest") == f"nothing new since {first['run']}\n"
    nodes["gpu2"] = Unreachable("no SSH on 127.0.0.1 port 1: timed out")
    result = document(capsys, "drift", "--baseline", first["run"][-4:], code=Exit.UNREACHABLE)
    assert result["baseline"] == first["run"]
    assert [(node["name"], node["status"]) for node in result["nodes"]] == [("gpu2", "unreachable")]


def test_a_baseline_does_not_make_nodes_out_of_reach_fine(
    nodes: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in nodes:
        nodes[name] = Unreachable("no SSH on port 22: timed out")
    said(capsys, "drift", code=Exit.UNREACHABLE)
    result = said(capsys, "drift", "--baseline", "latest", code=Exit.UNREACHABLE)
    assert result == "gpu[1-3] unreachable: no SSH on port 22: timed out\n"


def test_history_tells_what_changed(nodes: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    first = document(capsys, "drift", code=Exit.DRIFT)["run"]
    nodes["gpu3"] = facts(system={**facts().raw("system"), "machine": "aarch64"})
    said(capsys, "drift", code=Exit.DRIFT)
    changed = said(capsys, "history", "--since", first, code=Exit.DRIFT)
    assert changed == "gpu3 system.arch expected x86_64, is aarch64\n"
    [*_, last] = said(capsys, "history", "gpu3").splitlines()
    assert last.endswith("  gpu3 system.arch expected x86_64, is aarch64")
    assert said(capsys, "history", "--since", "latest") == "nothing changed\n"
    assert run(["history", "gpu9"]) == Exit.USAGE
    assert "no run has read 'gpu9'" in capsys.readouterr().err


def test_history_compares_with_the_last_run_before_a_time(
    nodes: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [document(capsys, "drift", code=Exit.DRIFT)["run"] for _ in range(2)]
    days = {ids[0]: 10, ids[1]: 8}
    with History() as history:
        kept = {run: history.run(run) for run in ids}
        for name, result in kept.items():
            at = (datetime.now(UTC) - timedelta(days=days[name])).isoformat(timespec="seconds")
            history.record(replace(result, at=at))
    nodes["gpu3"] = facts(system={**facts().raw("system"), "machine": "aarch64"})
    last = document(capsys, "drift", code=Exit.DRIFT)["run"]
    for since, before in (("7d", ids[1]), ("1w", ids[1]), ("9d", ids[0]), ("300d", ids[0])):
        found = document(capsys, "history", "--since", since, code=Exit.DRIFT)
        assert (found["since"], found["to"]) == (before, last), since
    day = (datetime.now(UTC) - timedelta(days=9)).date().isoformat()
    assert document(capsys, "history", "--since", day, code=Exit.DRIFT)["since"] == ids[0]


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
def test_a_time_that_no_calendar_contains_is_refused(time: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a time is refused whose UTC is before the year 1 or after 9999."""
    assert run(["history", "--worst", "--since", time]) == Exit.USAGE
    assert f"--worst --since {time}; expected a time" in capsys.readouterr().err


@pytest.mark.usefixtures("nodes")
def test_what_the_lock_states_nothing_of_is_named_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["drift", "-v"]) == Exit.DRIFT
    assert "not checked, as the lock states nothing of them: " in capsys.readouterr().err
    assert run(["drift"]) == Exit.DRIFT
    assert "not checked" not in capsys.readouterr().err


@pytest.mark.usefixtures("nodes")
def test_reports_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that drift writes its reports, and that `report latest` writes the same again."""
    files = ["--html", "page.html", "--junit", "junit.xml", "--prometheus", "gpuprov.prom"]
    said(capsys, "drift", *files, code=Exit.DRIFT)
    first = {name: (tmp_path / name).read_text() for name in files[1::2]}
    assert said(capsys, "report", "latest", *files) == ""
    assert {name: (tmp_path / name).read_text() for name in files[1::2]} == first
    assert run(["drift", "--html", "absent/page.html"]) == Exit.USAGE


def test_the_majority_needs_no_expectation(nodes: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "drift", "--against-majority") == "gpu[1-3] in sync\n"
    nodes["gpu2"] = facts(system={**facts().raw("system"), "kernel": "6.8.0-1-generic"})
    result = said(capsys, "drift", "--against-majority", code=Exit.DRIFT).splitlines()
    usual = facts().kernel
    assert result == ["gpu[1,3] in sync", f"gpu2 kernel.running expected {usual}, is 6.8.0-1-generic"]


def test_without_a_lock_hosts_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        gpuprov.drift.survey, "gather_from", lambda targets, **_: ((each.name, facts()) for each in targets)
    )
    assert said(capsys, "drift", "--against-majority", "root@gpu[1-2]:2222") == (
        "root@gpu[1-2]:2222 in sync\n"
    )
    assert run(["drift", "--against-majority"]) == Exit.USAGE
    assert (
        "there is no lock fleet.lock.yml, and no host is named; run `gpuprov lock`, name hosts"
        in capsys.readouterr().err
    )
    assert run(["drift", "gpu1"]) == Exit.USAGE


def test_watching_says_only_what_changes(nodes: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    """Print only changes: after two checks with the same result, a third check finds one node unreachable."""
    looks = iter(range(10))

    def nap(seconds: float) -> None:
        """Change the node instead of waiting; interrupt at the end."""
        look = next(looks)
        if look == 1:
            nodes["gpu1"] = Unreachable("no SSH on 127.0.0.1 port 1: timed out")
        if look == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", nap)
        assert run(["drift", "--watch", "5"]) == Exit.INTERRUPTED
    lines = [line[10:] for line in capsys.readouterr().out.splitlines()]
    assert lines[-1] == "gpu1 unreachable: no SSH on 127.0.0.1 port 1: timed out"
    assert sum(line.startswith("gpu[1-3] system.os") for line in lines) == 1
    assert len(document(capsys, "history")["runs"]) == 2


def test_what_is_found_is_reported_when_it_cannot_be_recorded(
    nodes: Answers, capsys: pytest.CaptureFixture[str], own_state: Path
) -> None:
    (own_state / "gpuprov").write_text("a file where the folder should be")
    assert run(["drift"]) == Exit.DRIFT
    result = capsys.readouterr()
    assert "gpu[1-3] system.os" in result.out
    assert result.err.startswith("this run is not in the history: no history can be kept in ")
    assert run(["history"]) == Exit.USAGE


NOTE = "gpu[1-3] note: driver 535.309.01 is affected by NVIDIA's security bulletin 5861 (high, 7.8: CVE-"


def test_affected_versions_are_notes_and_no_differences(
    nodes: Answers, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = document(capsys, "drift", code=Exit.DRIFT)
    assert {note["node"] for note in before["security"]} == set(nodes)
    assert {note["bulletins"][0] for note in before["security"]} == {"5861"}
    assert not any("bulletin" in str(each) for node in before["nodes"] for each in node["drift"])
    assert run(["drift"]) == Exit.DRIFT
    printed = capsys.readouterr()
    assert NOTE in printed.err
    assert "gpuprov catalog check --security" in printed.err
    assert "bulletin" not in printed.out
    assert run(["report", "--html", "page.html", "--prometheus", "node.prom"]) == Exit.OK
    assert "security bulletin 5861" in Path("page.html").read_text()
    affected = 'gpuprov_node_affected{component="driver",node="gpu1",verb="drift",version="535.309.01"} 1.0'
    assert affected in Path("node.prom").read_text()
    capsys.readouterr()
    assert run(["report"]) == Exit.OK
    assert NOTE in capsys.readouterr().err
    assert document(capsys, "report")["security"] == before["security"]
    lock = read_lock(Path("fleet.lock.yml"))
    write_lock(lock.model_copy(update={"security": "ignore"}), Path("fleet.lock.yml"))
    assert "security" not in document(capsys, "drift", code=Exit.DRIFT)
    assert run(["report"]) == Exit.OK
    assert "bulletin" not in capsys.readouterr().err


def test_a_catalog_that_was_changed_is_a_warning(
    nodes: Answers, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise GpuprovError("catalog 2026.11.22 was changed")

    monkeypatch.setattr("gpuprov.catalog.load", refused)
    assert run(["drift"]) == Exit.DRIFT
    assert (
        "Warning: nothing is known of security bulletins: catalog 2026.11.22 was changed"
        in capsys.readouterr().err
    )
