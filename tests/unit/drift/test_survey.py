"""A survey of several nodes: every answer is reported while it runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuprov.apply.plan import plan_node
from gpuprov.drift import survey as module
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.errors import NodeFailed
from gpuprov.model.lock import read_lock
from gpuprov.roles import expectations
from gpuprov.ssh.answers import read_answer
from gpuprov.ssh.contained import contained
from gpuprov.ssh.dispatch import Dispatch
from tests import RECORDED_LOCK


def test_each_answer_is_reported_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    hosts = {"gpu01": "10.0.0.1", "gpu02": "10.0.0.2"}
    lock = lock.model_copy(update={"groups": {name: group.model_copy(update={"hosts": hosts})}})
    said: list[str] = []

    def gather(*_: Any, **__: Any) -> Any:
        """Yield a failure of each host, and record the host first."""
        for host in hosts:
            said.append(host)
            yield host, NodeFailed("no Python")

    monkeypatch.setattr(module, "gather", gather)
    found = module.survey(lock, hosts, answered=lambda: said.append("answered"))
    assert [(node.name, node.status) for node in found] == [("gpu01", "error"), ("gpu02", "error")]
    assert said == ["gpu01", "answered", "gpu02", "answered"]


LOCK = read_lock(RECORDED_LOCK)
[NODE] = LOCK.hosts()
STATED = {each.check: each for each in expectations(LOCK.hosts()[NODE])}
PACKAGES = next(check for check in STATED if check.endswith(".packages"))
FIRST = next(iter(STATED[PACKAGES].expected))


class Worker:
    """A crew whose answer is the given document."""

    def __init__(self, **document: Any) -> None:
        self.text = json.dumps({"name": NODE, "status": "drifted", "drift": [], "reason": None, **document})

    def do(self, *_: Any, answer: Any, **__: Any) -> Any:
        """Yield the node with its result, read from the worker's text."""
        yield NODE, contained(NODE, lambda: read_answer(self.text, answer))


def surveyed(**document: Any) -> NodeDrift:
    """Return the node's drift by a worker that answers with this document."""
    crew: Any = Worker(**document)
    [found] = module.survey(LOCK, [NODE], dispatch=Dispatch(crew=crew))
    return found


def difference(check: str, **others: Any) -> dict[str, Any]:
    """Return a difference as a worker sends it, with other values."""
    stated = {"expected": 1, "actual": 2, "severity": "error", "role": None, "reboot": False, "by": []}
    return {"check": check, **stated, **others}


def test_a_workers_differences_have_the_values_of_the_lock() -> None:
    result = difference(PACKAGES, actual={FIRST: "1"}, role="no_such", severity="warning", reboot=True)
    found = surveyed(drift=[result])
    stated, seen = STATED[PACKAGES], {FIRST: "1"}
    wanted = {FIRST: stated.expected[FIRST]}
    assert found.drift == (Difference(PACKAGES, wanted, seen, "error", stated.role, reboot=False),)
    assert plan_node(found).newer == []


def test_a_worker_may_state_that_the_driver_does_not_answer() -> None:
    check = next(each.check for each in STATED.values() if each.needs_driver)
    [found] = surveyed(drift=[difference(check, actual="unknown", reboot=True)]).drift
    assert (found.expected, found.role, found.reboot) == (STATED[check].expected, None, True)


@pytest.mark.parametrize(
    ("drift", "reason"),
    [
        ([difference("x", role="no_such")], "the check 'x', which the lock does not have for this node"),
        ([difference(PACKAGES)] * 2, "twice"),
        ([{"check": PACKAGES}], "the answer has an unexpected form"),
    ],
)
def test_a_worker_that_contradicts_the_lock_is_an_error_of_its_node(drift: Any, reason: str) -> None:
    found = surveyed(drift=drift)
    assert (found.status, found.drift) == ("error", ())
    assert reason in str(found.reason)


def test_a_workers_status_follows_from_its_differences() -> None:
    assert surveyed(status="in_sync", drift=[difference(PACKAGES)]).status == "drifted"
    assert surveyed(status="drifted").status == "in_sync"
    lost = surveyed(status="unreachable", drift=[difference("x")])
    assert (lost.drift, lost.reason) == ((), "no reason was given")


def test_a_worker_is_asked_about_its_own_nodes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Crew:
        """A crew that does the work for its nodes in this process."""

        def do(self, part: Any, each: Any, **_: Any) -> Any:
            """Yield each node with its result."""
            yield from part(list(each))(dict(each)).items()

    def gather(lock: Any, names: Any, *_: Any, **__: Any) -> Any:
        """Yield a failure of each node that has the names of all nodes of the lock."""
        for name in names:
            yield name, NodeFailed(f"one of {[*lock.hosts()]}")

    monkeypatch.setattr(module, "gather", gather)
    [group] = LOCK.groups.values()
    more = group.model_copy(update={"hosts": {**group.hosts, "other": "10.0.0.9"}})
    crew: Any = Crew()
    lock = LOCK.model_copy(update={"groups": dict.fromkeys(LOCK.groups, more)})
    [found] = module.survey(lock, [NODE], dispatch=Dispatch(crew=crew))
    assert (found.name, found.status) == (NODE, "error")
    assert f"one of ['{NODE}']" in str(found.reason)
