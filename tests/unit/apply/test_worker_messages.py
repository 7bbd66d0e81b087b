"""Events of a worker that changes nodes: files stay in the run's folder, events concern only its nodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply import worker_messages
from gpuprov.apply.context import RunContext
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.apply.worker_messages import FILES, WorkerMessages
from gpuprov.errors import NodeFailed
from gpuprov.model.lock import read_lock
from gpuprov.ssh.answers import read_answer, write_answer
from tests import RECORDED_LOCK

DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]


class Run:
    """A run's folder, and the events and lines that it received."""

    def __init__(self, above: Path) -> None:
        self.folder = above / "run"
        self.folder.mkdir()
        self.events: list[Any] = []
        self.lines: list[str] = []
        run = RunContext(
            read_lock(RECORDED_LOCK), self.folder, listen=self.events.append, narrate=self.lines.append
        )
        self.hearing = WorkerMessages(run)

    def take(self, result: Any) -> None:
        """Process an event of attempt 7 for the nodes n1 and n2."""
        self.hearing.take(("n1", "n2"), 7, result)


class Names(frozenset[str]):
    """Names of nodes that may be looked up, but not read one after the other."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("each event reads all names")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_an_event_takes_no_time_for_the_other_nodes(run: Run) -> None:
    """Look names up: a worker chooses the number of its events."""
    names = Names(f"n{at}" for at in range(9))
    run.hearing.take(names, 7, {"event": {"event": "task", "host": "n3", "status": "ok"}})
    assert [event["host"] for event in run.events] == ["n3"]
    with pytest.raises(NodeFailed, match="which it was not given"):
        run.hearing.take(names, 7, {"event": {"event": "task", "host": "n9", "status": "ok"}})


@pytest.mark.parametrize(
    "file", ["site-ansible.log", "again-1/site-events.jsonl", "access-2/site-inventory.json"]
)
def test_files_of_playbooks_are_kept(run: Run, file: str) -> None:
    for text in ("first", "later"):
        run.take({"file": file, "text": text})
    assert (run.folder / "attempt-7" / file).read_text() == "later"


@pytest.mark.parametrize(
    "file",
    [
        "../../../root/.ssh/authorized_keys",
        "../site-ansible.log",
        "/etc/cron.d/x",
        "access-1/../../site-ansible.log",
        "access-1/access-2/site-ansible.log",
        "..",
        ".",
        "",
        "leases.json",
        "verify.json",
        "site-ansible.log/x",
        "site-ansible.log\n",
        "again-1\n/site-ansible.log",
        "site-ansible.log\0",
        "./site-ansible.log",
        "~/site-ansible.log",
        "x" * 300,
    ],
)
def test_any_other_file_is_refused(run: Run, tmp_path: Path, file: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NodeFailed):
        run.take({"file": file, "text": "mine"})
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_is_not_written_through(run: Run, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("theirs")
    (run.folder / "attempt-7").mkdir()
    (run.folder / "attempt-7/site-ansible.log").symlink_to(tmp_path / "other")
    run.take({"file": "site-ansible.log", "text": "mine"})
    assert (tmp_path / "other").read_text() == "theirs"


def test_files_are_bounded_in_size_and_number(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(FILES):
        run.take({"file": f"again-{number}/site-ansible.log", "text": ""})
    with pytest.raises(NodeFailed, match="more files than gpuprov's playbooks write"):
        run.take({"file": "site-ansible.log", "text": ""})
    shutil.rmtree(run.folder / "attempt-7")
    with pytest.raises(NodeFailed):
        run.take({"file": "site-ansible.log", "text": "x" * (worker_messages.FILE_CHARACTERS + 1)})
    assert not (run.folder / "attempt-7").exists()


def test_an_event_is_about_a_node_of_the_worker(run: Run) -> None:
    run.take({"event": {"event": "task", "host": "n1", "status": "changed", "msg": {"a": 1}, "more": 1}})
    [event] = run.events
    assert event == {"event": "task", "host": "n1", "status": "changed", "msg": "{'a': 1}", "stream": 7}
    with pytest.raises(NodeFailed, match="'n9', which it was not given"):
        run.take({"event": {"event": "task", "host": "n9", "status": "failed"}})


@pytest.mark.parametrize(
    "result",
    [
        None,
        7,
        {"event": []},
        {"event": {"host": ["n1"]}},
        {"event": {"role": {}}},
        {"event": {"msg": DEEP}},
        {"line": "x" * 5000},
        {"line": 1},
        {"line": "\ud800"},
        {"file": "site-ansible.log", "text": 1},
        {"what": 1},
        {},
        {"line": None},
        {"line": "a", "event": {"event": "task", "host": "n1"}},
        {"line": "a", "file": "site-ansible.log", "text": ""},
        {"event": {"event": "task"}, "file": "site-ansible.log", "text": ""},
        {"line": "a", "text": "b"},
        {"event": {"event": "task"}, "text": "b"},
        {"text": "b"},
        {"file": "site-ansible.log"},
    ],
)
def test_what_cannot_be_read_is_refused(run: Run, result: Any) -> None:
    """Check that an invalid message of a worker raises NodeFailed and leaves no event, line or file."""
    with pytest.raises(NodeFailed):
        run.take(result)
    assert not run.events
    assert not run.lines
    assert not list(run.folder.iterdir())


def test_a_line_is_printable_and_one(run: Run) -> None:
    run.take({"line": "a\x1b[2J\nb"})
    assert run.lines == [r"a\x1b[2J\nb"]


def test_an_outcome_has_all_that_is_printed_of_it() -> None:
    result = {"changed": 1, "failed": [{"task": "x", "status": None}]}
    found = read_answer(json.dumps(result), NodeOutcome)
    assert found.failed == [{"host": "", "role": "", "task": "x", "status": "failed", "msg": ""}]
    assert read_answer(write_answer(found, NodeOutcome, 1000), NodeOutcome) == found
    for wrong in ({"failed": [1]}, {"failed": [{"task": []}]}, {"changed": "1"}, {"refused": 1}):
        with pytest.raises(NodeFailed, match="answer has an unexpected form"):
            read_answer(json.dumps(wrong), NodeOutcome)
