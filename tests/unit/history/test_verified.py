"""Nodes that are known to be verified: against these expectations, by their last verification."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gpuprov.history import History
from gpuprov.history import verified as module
from gpuprov.history.verified import keep_verdict, not_verified
from gpuprov.model.lock import Lock, read_lock
from gpuprov.verify.verdict import NodeStatus, NodeVerdict, Verdict
from tests import RECORDED_LOCK

LOCK = Path("fleet.lock.yml")


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lock:
    """Return the recorded lock; the history is in a temporary folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return read_lock(RECORDED_LOCK)


def keep(lock: Lock, status: NodeStatus) -> None:
    """Store a verdict with this status of the lock's node; an error fails the test."""
    [name] = lock.hosts()
    keep_verdict(lock, LOCK, Verdict("2026-01-31T14:25:01+00:00", [NodeVerdict(name, status)]), pytest.fail)


@pytest.mark.parametrize(
    ("statuses", "known"),
    [
        ([], False),
        (["passed"], True),
        (["passed", "failed"], False),
        (["passed", "error"], False),
        (["passed", "unreachable"], True),
        (["failed", "passed"], True),
    ],
)
def test_the_last_verification_counts(lock: Lock, statuses: list[NodeStatus], known: bool) -> None:
    for status in statuses:
        keep(lock, status)
    assert not_verified(lock, LOCK, lock.hosts()) == ([] if known else list(lock.hosts()))


def test_another_lock_or_another_version_is_not_verified(lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(lock, "passed")
    names = list(lock.hosts())
    assert not_verified(lock, Path("other.lock.yml"), names) == names
    [(name, group)] = lock.groups.items()
    hardware = group.hardware.model_copy(update={"gpu_count": group.hardware.gpu_count + 1})
    more = lock.model_copy(update={"groups": {name: group.model_copy(update={"hardware": hardware})}})
    assert not_verified(more, LOCK, names) == names
    monkeypatch.setattr(module, "__version__", "99")
    assert not_verified(lock, LOCK, names) == names


def test_without_a_history_no_node_is_verified(lock: Lock, tmp_path: Path) -> None:
    (tmp_path / "gpuprov").mkdir()
    (tmp_path / "gpuprov/history.sqlite").write_text("no database, but long enough to look like a file")
    said: list[Any] = []
    [name] = lock.hosts()
    keep_verdict(lock, LOCK, Verdict("2026-01-31T14:25:01+00:00", [NodeVerdict(name, "passed")]), said.append)
    assert (len(said), not_verified(lock, LOCK, [name])) == (1, [name])


def test_a_history_of_the_version_before_gets_its_table(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with History(path):
        pass
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE verified")
        database.execute("PRAGMA user_version = 1")
    with History(path) as history:
        assert history.verified("fleet") == {}


def test_a_verification_goes_on_without_its_record(lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_digests", lambda _: {})
    said: list[str] = []
    [name] = lock.hosts()
    keep_verdict(lock, LOCK, Verdict("2026-01-31T14:25:01+00:00", [NodeVerdict(name, "passed")]), said.append)
    assert said == [f"this verification is not in the history: {name!r}"]


def test_a_path_that_is_not_text_has_no_record(lock: Lock) -> None:
    names = list(lock.hosts())
    assert not_verified(lock, Path("fleet\udcff.lock.yml"), names) == names
