"""Changes by workers on fake nodes: data sent to a worker, leases of the nodes, and returned results."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from gpuprov.apply import attempts, lease_manager
from gpuprov.apply.attempts import change
from gpuprov.apply.context import Options, RunContext
from gpuprov.apply.lease_manager import LeaseManager
from gpuprov.errors import GpuprovError, Refused
from gpuprov.files.runs import state_dir
from gpuprov.ssh.dispatch import Attempt, CrewLost, Dispatch, attempting
from tests.unit.apply.paper_nodes import PaperNodes

RUN = "20260131-142501-apply-0001"


class PaperCrew:
    """Fake workers that run one after the other in this process; requests and results are pickled."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = iter(numbers)

    def do(
        self, part: Any, each: Mapping[str, Any], *, answer: Any, hear: Any, changes: bool
    ) -> Iterator[tuple[str, Any]]:
        """Do the work in this process, with everything pickled as for a worker."""
        packed = cloudpickle.dumps((part(list(each)), dict(each)))
        there, nodes = pickle.loads(packed)  # noqa: S301 - our own
        number = next(self.numbers)
        with attempting(Attempt(number, "w1", lambda event: hear(list(each), number, event))):
            found = pickle.loads(cloudpickle.dumps(dict(there(nodes))))  # noqa: S301 - our own
        yield from found.items()


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PaperNodes:
    """Return the fake nodes n1, n2 and n3; waiting for a lease takes no time."""
    monkeypatch.setattr(lease_manager.time, "sleep", lambda seconds: None)
    return PaperNodes(tmp_path, monkeypatch, "n1", "n2", "n3")


@pytest.fixture
def run(nodes: PaperNodes) -> Iterator[RunContext]:
    """Provide the context of a run that has leased the nodes."""
    folder = state_dir() / "runs" / RUN
    folder.mkdir(parents=True, exist_ok=True)
    context = RunContext(nodes.lock(), folder, Options(Dispatch(forks=4)))
    with LeaseManager([nodes.lock()], folder) as own:
        own.take(nodes.names)
        yield replace(context, leases=own)


def by_workers(run: RunContext, *numbers: int) -> RunContext:
    """Return the run with workers, whose attempts have these numbers."""
    return replace(run, options=Options(Dispatch(crew=PaperCrew(*numbers))))


def done(own: RunContext, each: Mapping[str, int]) -> dict[str, str]:
    """Return `done` for each node."""
    return dict.fromkeys(each, "done")


def test_here_it_is_done_under_the_runs_own_leases(run: RunContext) -> None:
    assert change(lambda own, each: dict.fromkeys(each, own is run), run, {"n1": 0}, answer=Any) == {
        "n1": True
    }


def test_an_attempt_leases_its_nodes_and_returns_the_leases(nodes: PaperNodes, run: RunContext) -> None:
    events: list[Any] = []
    lines: list[str] = []

    def work(own: RunContext, each: Mapping[str, int]) -> dict[str, Any]:
        """Report an event and a line, write files, and return what the attempt has leased."""
        assert own.leases
        own.listen({"event": "task", "host": "n1"})
        own.narrate("at it")
        (own.folder / "site-ansible.log").write_text("PLAY")
        (own.folder / "facts").mkdir()
        (own.folder / "facts" / "n1").write_text("{}")
        return {name: (own.leases.run, list(own.lock.hosts()), number) for name, number in each.items()}

    run = replace(by_workers(run, 7), listen=events.append, narrate=lines.append)
    found = change(work, run, {"n1": 1, "n3": 3}, answer=Any)
    attempt = found["n1"][0]
    assert attempt.startswith(f"{RUN}/7.")
    assert found == {"n1": (attempt, ["n1", "n3"], 1), "n3": (attempt, ["n1", "n3"], 3)}
    assert nodes.holders == dict.fromkeys(nodes.names, RUN)
    assert (events, lines) == ([{"event": "task", "host": "n1", "stream": 7}], ["at it"])
    assert (run.folder / "attempt-7/site-ansible.log").read_text() == "PLAY"
    assert not (run.folder / "attempt-7/facts").exists()


def test_a_file_that_is_large_as_json_stays_at_the_worker(
    run: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave out a log full of bytes that become six characters each."""
    monkeypatch.setattr(attempts, "FILE_CHARACTERS", 1000)

    def work(own: RunContext, each: Mapping[str, int]) -> dict[str, Any]:
        """Write a log with the warnings of a node, and another file."""
        (own.folder / "site-ansible.log").write_bytes(b"\xff" * 900)
        (own.folder / "site-events.jsonl").write_bytes(b"x" * 900)
        return dict(each)

    change(work, by_workers(run, 7), {"n1": 1}, answer=Any)
    assert [path.name for path in (run.folder / "attempt-7").iterdir()] == ["site-events.jsonl"]


def test_a_node_leased_by_an_attempt_belongs_to_the_run(nodes: PaperNodes, run: RunContext) -> None:
    nodes.give("n2", f"{RUN}/7.aa", "x@w1")
    assert run.leases
    nodes.now += 590
    assert run.leases.prove(nodes.names) == {}


def test_an_attempt_waits_for_the_last_one_and_follows_it(
    nodes: PaperNodes, run: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.give("n2", f"{RUN}/6.aa", "x@w0")
    monkeypatch.setattr(
        lease_manager.time, "sleep", lambda seconds: setattr(nodes, "now", nodes.now + seconds)
    )
    begun = nodes.now
    found = change(done, by_workers(run, 7), {"n1": 0, "n2": 0}, answer=Any)
    assert found == {"n1": "done", "n2": "done"}
    assert attempts.ATTEMPT_S <= nodes.now - begun < 2 * attempts.ATTEMPT_S


def test_an_attempt_that_comes_too_late_does_nothing(nodes: PaperNodes, run: RunContext) -> None:
    run = by_workers(run, 8, 7)
    assert change(done, run, {"n1": 0}, answer=Any) == {"n1": "done"}
    late = change(done, run, {"n1": 0, "n2": 0}, answer=Any)
    assert isinstance(late["n1"], GpuprovError)
    assert late["n2"] == "done"


def test_a_node_that_another_run_took_is_left_alone(nodes: PaperNodes, run: RunContext) -> None:
    nodes.now += 700
    nodes.give("n2", "20260131-142502-apply-0002")
    found = change(done, by_workers(run, 7), {"n1": 0, "n2": 0}, answer=Any)
    assert (found["n1"], type(found["n2"])) == ("done", Refused)


def test_where_nothing_changes_nobody_takes_a_lease(nodes: PaperNodes, run: RunContext) -> None:
    asked = len(nodes.asked)
    run = replace(by_workers(run, 7), leases=None)
    looked = change(lambda own, each: dict.fromkeys(each, own.leases), run, {"n1": 0}, answer=Any)
    assert looked == {"n1": None}
    assert len(nodes.asked) == asked


def test_leases_that_nobody_can_be_sent_to_renew_are_no_traceback(nodes: PaperNodes, run: RunContext) -> None:
    def lost(*asked: Any, **how: Any) -> Any:
        raise CrewLost("the scheduler at tls://ctl1:1 no longer answers")

    assert run.leases
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_manager, "ask_nodes", lost)
        nodes.now += 700
        said = run.leases.lost(["n1"])["n1"]
        run.leases.release()
    assert str(said).endswith("the scheduler at tls://ctl1:1 no longer answers")


def test_nothing_is_stopped_after_a_block_that_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    ended: list[str] = []

    def at_work(folder: Path) -> list[int]:
        """Return no process, after a while."""
        asked.set()
        time.sleep(0.2)
        ended.append(str(folder))
        return []

    monkeypatch.setattr(attempts, "ansible_at_work", at_work)
    stop = threading.Event()
    stop.set()
    with attempts._stopped_on_demand(tmp_path, stop):
        assert asked.wait(5)
    assert ended == [str(tmp_path)]
