"""`gpuprov topo HOST`: the matrix of a live node, compared with its board in the lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuprov.cli.common.group import run
from gpuprov.errors import Unreachable
from gpuprov.model.lock import read_lock, write_lock
from gpuprov.ssh import transport
from gpuprov.topology.live import topology_of
from tests import H200, RECORDED_LOCK

MATRIX = (H200 / "topo-m.txt").read_text()


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The node's answer: the text of a matrix, or an error."""
    said: dict[str, Any] = {"text": MATRIX}

    class Session:
        def run(self, command: str, stdin: bytes = b"") -> transport.Output:
            return transport.Output(0, said["text"].encode(), b"")

    def fan_out(targets: Any, work: Any, **_: Any) -> Any:
        [target] = targets
        yield target, said.get("error") or work(Session())

    monkeypatch.setattr(transport, "fan_out", fan_out)
    said["session"] = Session()
    return said


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Path of a lock whose one node has a board with NVLink between all GPUs."""
    recorded = read_lock(RECORDED_LOCK)
    [(name, group)] = recorded.groups.items()
    hardware = group.hardware.model_copy(update={"nvlink": True})
    changed = group.model_copy(update={"hardware": hardware, "hosts": {"gpu01": "10.0.0.1"}})
    write_lock(recorded.model_copy(update={"groups": {name: changed}}), tmp_path / "lock.yml")
    return tmp_path / "lock.yml"


@pytest.mark.usefixtures("answer")
def test_a_healthy_board(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a node whose GPUs are joined as on its board has exit code 0."""
    assert run(["topo", "gpu01", "--lock", str(lock)]) == 0
    assert "all 6 GPU pairs are joined by NVLink" in capsys.readouterr().out


def test_a_board_without_its_nvlink_is_a_fault(lock: Path, answer: dict[str, Any]) -> None:
    answer["text"] = MATRIX.replace("NV18", "PHB")
    assert run(["topo", "gpu01", "--lock", str(lock)]) == 1
    assert run(["topo", "root@elsewhere", "--lock", str(lock)]) == 0  # the lock does not contain this host


def test_no_way_in_is_said(lock: Path, answer: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    answer["error"] = Unreachable("no route to it")
    assert run(["topo", "gpu01", "--lock", str(lock)]) == 4
    assert "no route to it" in capsys.readouterr().err


def test_a_node_without_a_driver_has_no_matrix(answer: dict[str, Any]) -> None:
    assert topology_of(answer["session"]) is not None
    for text in (
        "",
        "bash: nvidia-smi: command not found",
        "No devices were found",
        "words of a newer driver",
    ):
        answer["text"] = text
        assert topology_of(answer["session"]) is None
