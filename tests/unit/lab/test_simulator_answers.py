"""Cache of the simulated nvidia-smi: an answer is repeated only while the state in it is unchanged."""

from __future__ import annotations

import subprocess
import time

import pytest

from gpuprov_lab.simulator.node import answers
from tests.unit.lab.simulated_node import Driven, Simulated

XML = ("-q", "-x")


@pytest.fixture
def node(driven: Driven) -> Simulated:
    """Return a node with four H200 whose answer is in the cache."""
    node = driven("h200x4", "580.159.04", "Dual MIT/GPL")
    assert answered(node)
    return node


def answered(node: Simulated) -> bool:
    """Return whether an answer is cached after some tries; one during which the second changes is not."""
    for _ in range(20):
        node.smi(*XML)
        if kept(node) is not None:
            return True
    return False


def kept(node: Simulated) -> str | None:
    """Return the answer in the cache, or None if it is not valid any more."""
    return answers.Answer(str(node.root), list(XML)).again()


def test_the_same_is_said_again_at_another_time(node: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    said = node.smi(*XML).text
    monkeypatch.setattr(time, "strftime", lambda _: "Sat Nov 21 11:22:33 2026")
    again = kept(node)
    assert again is not None
    assert "<timestamp>Sat Nov 21 11:22:33 2026</timestamp>" in again
    assert again.splitlines()[4:] == said.splitlines()[4:]


@pytest.mark.parametrize(
    "change",
    [
        ("nvidia-smi", "-c", "3"),
        ("nvidia-smi", "-e", "0"),
        ("gpuprov-sim", "fault", "gpu-lost", "1"),
    ],
)
def test_a_setting_and_a_fault_make_another_answer(node: Simulated, change: tuple[str, ...]) -> None:
    assert kept(node) is not None
    assert node.call(*change).status == 0
    assert kept(node) is None


def test_another_library_makes_another_answer(node: Simulated) -> None:
    node.put_library("580.126.16")
    assert node.smi(*XML).status == 18


def test_a_daemon_that_died_makes_another_answer(node: Simulated) -> None:
    with subprocess.Popen(["sleep", "60"]) as daemon:
        folder = node.root / "run/nvidia-persistenced"
        folder.mkdir(parents=True)
        (folder / "nvidia-persistenced.pid").write_text(f"{daemon.pid}\n")
        assert answered(node)
        daemon.kill()
    assert kept(node) is None


def test_what_changes_by_itself_is_not_kept(node: Simulated) -> None:
    asked = ["--query-gpu=timestamp,name", "--format=csv"]
    node.smi(*asked)
    assert answers.Answer(str(node.root), asked).again() is None
