"""Answers of gpuprov's programs on many nodes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import pytest

from gpuprov.apply import remote
from gpuprov.errors import NodeFailed
from gpuprov.model.connection import Connection
from gpuprov.ssh import transport
from gpuprov.ssh.dispatch import Dispatch
from gpuprov.ssh.transport import Target

NODES = [Target(f"gpu{number}", f"gpu{number}", Connection()) for number in range(6)]


class Result(dict[str, int]):
    """A node's result, with references that do not keep it."""

    __hash__ = object.__hash__


@dataclass(frozen=True)
class Answering:
    """A session with a node that answers at once."""

    target: Target


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> WeakSet[Result]:
    """Let each node answer at once; return the results that are kept."""
    kept: WeakSet[Result] = WeakSet()

    def result(_payload: object, session: Answering) -> Result:
        answer = Result(number=NODES.index(session.target))
        kept.add(answer)
        return answer

    monkeypatch.setattr(transport, "open_session", lambda target, _limits: nullcontext(Answering(target)))
    monkeypatch.setattr(remote, "_result", result)
    return kept


def ask(**how: Any) -> dict[str, Any]:
    """Ask all nodes, one at a time."""
    questions: dict[str, dict[str, Any]] = {each.name: {} for each in NODES}
    modules = ("gpuprov.apply.node.main",)
    return remote.ask_nodes(modules, NODES, questions, dispatch=Dispatch(forks=1), **how)


def test_results_are_not_kept_until_the_last_node_has_answered(alive: WeakSet[Result]) -> None:
    seen: list[int] = []

    def read(result: Result) -> int:
        seen.append(len(alive))
        return result["number"]

    assert sorted(ask(read=read).values()) == list(range(len(NODES)))
    assert max(seen) <= 2, seen


@pytest.mark.usefixtures("alive")
def test_a_result_that_cannot_be_read_is_its_nodes_failure() -> None:
    answers = ask(read=lambda result: 1 // result["number"])
    assert isinstance(answers.pop("gpu0"), NodeFailed)
    assert set(answers.values()) == {0, 1}
