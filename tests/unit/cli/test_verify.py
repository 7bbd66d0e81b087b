"""`gpuprov verify` on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpuprov.cli.common.group import run
from gpuprov.errors import Exit
from gpuprov.model.lock import write_lock
from tests.unit.verify.nodes_on_paper import lock_of


@pytest.fixture
def lock(tmp_path: Path) -> str:
    """Return the path of a lock with the nodes gpu1 and gpu2."""
    path = tmp_path / "fleet.lock.yml"
    write_lock(lock_of("gpu1", "gpu2"), path)
    return str(path)


def test_nodes_out_of_reach_are_folded_into_a_line(lock: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--lock", lock]) == Exit.UNREACHABLE
    said = capsys.readouterr().out
    why = "no SSH on port 1: connection refused; check the address, and that it is up"
    assert re.fullmatch(rf"unreachable  gpu\[1-2\]  {why}; see {re.escape(lock)}:\d+\n", said)


def test_json_is_one_document_on_stdout(
    lock: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junit = tmp_path / "verify.xml"
    assert run(["verify", "gpu2", "--lock", lock, "-o", "json", "--junit", str(junit)]) == Exit.UNREACHABLE
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "gpuprov.verify/1"
    assert [(node["name"], node["status"]) for node in document["nodes"]] == [("gpu2", "unreachable")]
    assert document["summary"] == {"nodes": 1, "passed": 0, "failed": 0, "error": 0, "unreachable": 1}
    assert "unreachable" in junit.read_text()


def test_unknown_node_is_a_mistake(lock: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "gpu3", "--lock", lock]) == Exit.USAGE
    assert "the lock has no node or group 'gpu3'" in capsys.readouterr().err
