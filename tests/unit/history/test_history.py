"""History of runs, and the changes between two of them."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuprov.drift.security import SecurityNote
from gpuprov.errors import InvalidInput
from gpuprov.history import History, changes, keep, news
from gpuprov.history import store as module
from gpuprov.history.record import of_verdict
from gpuprov.model.lock import read_lock
from gpuprov.report.text import change_lines
from gpuprov.verify.verdict import CheckResult, NodeVerdict, Verdict
from tests import RECORDED_LOCK
from tests.unit.history.runs_on_paper import differs, lost, node, run

HOLD = differs("pins.hold", ["libcuda1"], [])
LOADED = differs("driver.loaded", "535.309.01", None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state/gpuprov/history.sqlite"


def test_a_run_comes_back_as_it_was(path: Path) -> None:
    kept = run(node("gpu2"), node("gpu1", HOLD, LOADED), lost("gpu3"))
    with History(path) as history:
        history.record(kept)
    with History(path) as history:
        assert history.run("latest") == kept
        [line] = history.lines()
    assert line.counts == {"in_sync": 1, "drifted": 1, "unreachable": 1, "error": 0}


def test_only_its_owner_may_read_it(path: Path) -> None:
    with History(path):
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_without_a_run_the_message_says_so(path: Path) -> None:
    said = "no run of /f/fleet.lock.yml is recorded on this controller; .*; gpuprov drift"
    with History(path) as history, pytest.raises(InvalidInput, match=said):
        history.run("latest", fleet="/f/fleet.lock.yml")


def test_a_run_is_named_by_either_end_of_its_id(path: Path) -> None:
    with History(path) as history:
        for number in range(3):
            history.record(run(node("gpu1"), id_=f"20260131-14250{number}-drift-aaa{number}"))
        assert history.run("aaa1").id == "20260131-142501-drift-aaa1"
        assert history.run("20260131-142502").id.endswith("aaa2")
        assert history.run("latest").id.endswith("aaa2")
        with pytest.raises(
            InvalidInput, match="no run is recorded as 'bbb'; `gpuprov history` lists the runs"
        ):
            history.run("bbb")
        with pytest.raises(InvalidInput, match="3 runs match '20260131'"):
            history.run("20260131")


def test_the_latest_of_one_fleet_is_not_that_of_another(path: Path) -> None:
    with History(path) as history:
        history.record(run(node("gpu1"), id_="one", fleet="/a"))
        history.record(run(node("gpu1"), id_="two", fleet="/b"))
        assert history.run("latest", fleet="/a").id == "one"
        assert [line.id for line in history.lines(fleet="/b")] == ["two"]


def test_the_story_of_a_node_goes_from_old_to_new(path: Path) -> None:
    with History(path) as history:
        for id_, seen in (("a", node("gpu1", HOLD)), ("b", lost("gpu1")), ("c", node("gpu1"))):
            history.record(run(seen, node("gpu2"), id_=id_))
        assert [(line.id, seen.status) for line, seen in history.of_node("gpu1", last=2)] == [
            ("b", "unreachable"),
            ("c", "in_sync"),
        ]


def test_a_file_that_is_no_database_is_said(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("something else, long enough to be looked at" * 50)
    with pytest.raises(
        InvalidInput, match=r"history.sqlite: .*not a database; expected a history of gpuprov"
    ):
        History(path)


def test_a_newer_gpuprovs_file_is_left_alone(path: Path) -> None:
    with History(path):
        pass
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(InvalidInput, match="newer gpuprov") as refused:
        History(path)
    assert refused.traceback  # the traceback still holds the connection
    assert path not in [held.resolve() for held in Path("/proc/self/fd").iterdir()]


def test_many_write_at_once(path: Path) -> None:
    def write(number: int) -> None:
        with History(path) as history:
            history.record(run(node("gpu1"), id_=f"run{number}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(24)))
    with History(path) as history:
        assert len(history.lines(last=100)) == 24


def test_changes_between_two_runs() -> None:
    before = [node("gpu1", HOLD), node("gpu2"), lost("gpu3"), node("gpu4", HOLD), node("gpu5")]
    after = [
        node("gpu1", LOADED),
        node("gpu2"),
        lost("gpu3", "other words"),
        node("gpu4"),
        node("gpu6", HOLD),
    ]
    found = {change.node: change for change in changes(before, after)}
    assert list(found) == ["gpu1", "gpu4", "gpu6", "gpu5"]
    assert (found["gpu1"].new, found["gpu1"].gone) == ((LOADED,), (HOLD,))
    assert (found["gpu4"].new, found["gpu4"].gone) == ((), (HOLD,))
    assert found["gpu6"].was is None
    assert found["gpu5"].now is None


def test_another_value_of_the_same_check_is_a_change() -> None:
    [change] = changes([node("gpu1", differs("gpu.count", 8, 7))], [node("gpu1", differs("gpu.count", 8, 6))])
    assert (change.new[0].actual, change.gone[0].actual) == (6, 7)
    assert list(change_lines([change])) == ["gpu1 gpu.count expected 8, is 6"]


def test_a_reason_of_a_node_is_one_line_of_the_changes() -> None:
    said = change_lines(changes([node("gpu01")], [lost("gpu01", "no\ngpu02 in sync")]))
    assert list(said) == ["gpu01 unreachable: no\\ngpu02 in sync"]


def test_news_are_what_is_bad_now_and_was_not() -> None:
    before = [node("gpu1", HOLD), node("gpu2", HOLD), lost("gpu3"), node("gpu4", HOLD)]
    after = [node("gpu1", HOLD, LOADED), node("gpu2"), lost("gpu3"), lost("gpu4")]
    assert news(before, after) == [node("gpu1", LOADED), lost("gpu3"), lost("gpu4")]


def test_a_verification_is_kept_in_the_same_words(path: Path) -> None:
    lock = read_lock(RECORDED_LOCK)
    failed = [
        CheckResult("pins.hold", "failed", ["libcuda1"], [], "", 0.1),
        CheckResult("driver.library", "failed", "535.309.01", "535.261.03", "", 0.1),  # by verify only
    ]
    verdict = Verdict("2026-01-31T14:25:01+00:00", [NodeVerdict("node1", "failed", failed)])
    kept = of_verdict(lock, Path("fleet.lock.yml"), verdict)
    with History(path) as history:
        history.record(kept)
        [seen] = history.run("latest").nodes
    assert [(each.check, each.role) for each in seen.drift] == [
        ("pins.hold", "package_pins"),
        ("driver.library", "nvidia_driver"),
    ]
    assert "driver.library" in kept.checks_by_node()["node1"]


def test_a_run_that_was_cut_by_a_reboot_of_this_machine_is_one_line_of_the_history(path: Path) -> None:
    with History(path) as history:
        history.record(run(lost("gpu1", "rebooting")))
        history.record(run(node("gpu1")))
        [line] = history.lines()
        assert (line.counts["in_sync"], line.counts["unreachable"]) == (1, 0)
        assert [each.status for _, each in history.of_node("gpu1")] == ["in_sync"]


def test_a_node_does_not_choose_the_size_of_the_history(path: Path) -> None:
    long = "x" * (1 << 20)
    drift = [replace(differs("a", "a", long), by=(long,)), differs("b", "a", [long] * 3), differs("c")]
    with History(path) as history:
        history.record(run(node("n1", *drift), lost("n2", long)))
        found = history.run("latest").nodes
    assert path.stat().st_size < 1 << 18
    assert str(found[0].drift[1].actual).endswith("xxx… (3145740 characters)")
    assert found[0].drift[2] == differs("c")


@pytest.mark.parametrize("long", ["x" * 16_385, 'a"' * 20_000, ["y"] * 9_000, {"k": "\n" * 20_000}])
def test_a_long_value_is_new_once(path: Path, long: Any) -> None:
    """Compare a run with one of the history, which has only the beginning of such a value."""
    now = [node("gpu1", differs("a", "a", long))]
    with History(path) as history:
        history.record(run(*now))
        before = history.run("latest").nodes
    assert before != now
    assert news(before, now) == []
    assert list(changes(before, now)) == []
    other = [node("gpu1", differs("a", "a", ["z"] * 9_000))]
    assert news(before, other) == other


def test_text_that_cannot_be_encoded_is_kept_with_a_sign_in_its_place(path: Path) -> None:
    with History(path) as history:
        history.record(run(lost("gpu1", "caf\udce9"), node("gpu2", differs("a", "\udcff"))))
        [gpu1, gpu2] = history.run("latest").nodes
    assert gpu1.reason == "caf\N{REPLACEMENT CHARACTER}"
    assert gpu2.drift[0].expected == "\udcff"


@pytest.mark.parametrize(
    "error", [UnicodeEncodeError("utf-8", "x", 0, 1, "no"), TypeError("x"), OSError(28, "full")]
)
def test_a_run_goes_on_without_its_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(module.History, "record", fail)
    said: list[str] = []
    keep(run(node("gpu1")), said.append)
    assert said == [f"this run is not in the history: {error}"]


def test_notes_come_back_and_a_history_of_version_2_gets_their_table(path: Path) -> None:
    note = SecurityNote(
        "gpu1", "driver", "535.288.01", ("5821", "5861"), True, "driver 535.288.01 is affected"
    )
    with History(path):
        pass
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE notes")
        database.execute("PRAGMA user_version = 2")
    database.close()
    with History(path) as history:
        history.record(replace(run(node("gpu1"), id_="run1"), notes=(note, note)))
        history.record(run(node("gpu1"), id_="run2"))
        history.record(replace(run(node("gpu1"), id_="run1"), notes=(note,)))
        assert history.run("run1").notes == (note,)
        assert history.run("run2").notes == ()
