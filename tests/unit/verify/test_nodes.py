"""Connections to nodes."""

from __future__ import annotations

import gc
from pathlib import Path
from weakref import ref

import pytest
from testinfra.host import Host

from gpuprov.errors import Unreachable
from gpuprov.verify.nodes import PAUSES_S, NodeUnderTest, connect_all
from gpuprov.verify.shell import Shell, ShellBackend
from tests.unit.verify.nodes_on_paper import judge, locked_group, paper_node


def node_behind(script: str) -> NodeUnderTest:
    """Return a node whose commands run in this shell script."""
    backend = ShellBackend("node", Shell(["/bin/sh", "-c", script], timeout_s=10), budget_s=10)
    return NodeUnderTest("node", locked_group("node"), backend, Host(backend))


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the pauses between attempts to connect."""
    monkeypatch.setattr("gpuprov.verify.nodes.PAUSES_S", [0.0 for _ in PAUSES_S])


@pytest.mark.parametrize(("refusals", "lost"), [(3, False), (4, True)])
def test_door_that_is_too_crowded_is_tried_again(tmp_path: Path, refusals: int, lost: bool) -> None:
    tries = tmp_path / "tries"
    node = node_behind(
        f"echo x >> {tries}; [ $(wc -l < {tries}) -gt {refusals} ] && exec sh; "
        "echo 'kex_exchange_identification: Connection closed by remote host' >&2; exit 255"
    )
    connect_all([node])
    assert isinstance(node.lost, Unreachable) is lost
    assert len(tries.read_text().split()) == 4
    node.backend.shell.close()


def test_door_that_is_shut_is_not(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    node = node_behind(f"echo x >> {tries}; echo 'Permission denied (publickey).' >&2; exit 255")
    connect_all([node])
    assert str(node.lost) == "Permission denied (publickey)."
    assert len(tries.read_text().split()) == 1


def test_answers_are_dropped_when_the_tests_of_the_next_node_begin(tmp_path: Path) -> None:
    """Have more than one node: observers' values take 25 times the size of the answers."""
    group = locked_group("a", "b", "c")
    nodes = [paper_node(name, group, lambda answers: None) for name in "abc"]
    hosts = [ref(node.host) for node in nodes]
    assert {verdict.status for verdict in judge(nodes, tmp_path).values()} == {"passed"}
    assert [bool(node.backend._answers) for node in nodes] == [False, False, True]
    gc.collect()
    assert [host() is not None for host in hosts] == [False, False, True]
