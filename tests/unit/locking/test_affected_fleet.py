"""A fleet with three affected groups and one that is not, through `lock`, `drift` and `report`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuprov.drift.survey
from gpuprov.cli.common.group import run
from gpuprov.errors import Exit
from gpuprov.model.lock import Lock
from gpuprov.probe.facts import Facts
from gpuprov_lab.mirror import nvidia
from tests import H200
from tests.unit.locking.fleets import written

STACKS: dict[str, dict[str, Any]] = {
    "train": {"driver": "580.95.05"},
    "tune": {"driver": "570.195.03"},
    "serve": {"driver": "580.178.04", "container_toolkit": "1.18.1", "dcgm": "4.5.2"},
    "new": {"driver": "580.178.04", "container_toolkit": "1.20", "dcgm": "4"},
}
AFFECTED = {
    ("train", "driver", "580.95.05"): {"5747", "5821", "5861"},
    ("tune", "driver", "570.195.03"): {"5747", "5821", "5861"},
    ("serve", "container_toolkit", "1.18.1"): {"5850"},
    ("serve", "dcgm", "4.5.2"): {"5857"},
}
"""Bulletins of each group's affected versions; tests of the catalog compare them with NVIDIA's."""


@pytest.fixture(scope="module")
def facts() -> Facts:
    """Answer of a node on which the driver of the group `new` is loaded."""
    answer = json.loads((H200 / "facts.json").read_text())
    answer["collectors"]["smi"] = {"rc": 0, "stdout": (H200 / "q.xml").read_text(), "stderr": ""}
    return Facts.from_answer(json.loads(json.dumps(answer).replace("580.159.04", "580.178.04")))


def test_three_groups_are_named_by_lock_drift_and_report(
    fleet: Path,
    mirror: nvidia.Mirror,
    facts: Facts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def gather(_: Lock, names: list[str], *__: Any, **___: Any) -> Iterator[tuple[str, Facts]]:
        yield from ((name, facts) for name in names)

    monkeypatch.setattr(gpuprov.drift.survey, "gather", gather)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles").symlink_to(fleet.parent / "profiles")
    groups = {name: ("ubuntu24.04", "a100", stack) for name, stack in STACKS.items()}
    written(Path("fleet.yml"), groups, mirror)

    assert run(["lock"]) == Exit.OK
    warned = [line for line in capsys.readouterr().err.splitlines() if "security bulletin" in line]
    for (group, _, release), bulletins in AFFECTED.items():
        (line,) = [line for line in warned if f" {group}: " in line and f" {release} is affected" in line]
        assert all(number in line for number in bulletins)
    assert len(warned) == len(AFFECTED)

    assert run(["drift", "-o", "json"]) == Exit.DRIFT
    notes = json.loads(capsys.readouterr().out)["security"]
    found = {(each["node"], each["component"], each["version"]): set(each["bulletins"]) for each in notes}
    assert found == {
        (f"{group}-{number}", component, release): bulletins
        for (group, component, release), bulletins in AFFECTED.items()
        for number in (1, 2)
    }

    assert run(["report"]) == Exit.OK
    said = capsys.readouterr().err
    for group, _, release in AFFECTED:
        assert f"{group}-[1-2] note: " in said
        assert f" {release} is affected" in said
    assert "new-[1-2] note" not in said
    assert run(["report", "--html", "page.html", "--prometheus", "node.prom"]) == Exit.OK
    page, samples = Path("page.html").read_text(), Path("node.prom").read_text()
    for number in set().union(*AFFECTED.values()):
        assert number in page
    affected = [line for line in samples.splitlines() if line.startswith("gpuprov_node_affected{")]
    assert len(affected) == 2 * len(AFFECTED)
    assert not any('node="new-' in line for line in affected)
    capsys.readouterr()
    assert run(["report", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["security"] == notes
