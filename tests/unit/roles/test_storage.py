"""Failures of the role storage when it makes a file system, on a file as the device."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.programs import write_program
from tests.unit.roles.scripts import script

format_ = script("storage", "format")


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty device; programs of its folder precede others."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(format_, "format_objection", lambda *_: (None, None))
    monkeypatch.setattr(format_, "MKFS_S", 0.5)
    (tmp_path / "device").touch()
    return tmp_path / "device"


def formatted(device: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the script for the device; return its document."""
    asked = {"devices": [{"path": str(device), "filesystem": "ext4"}], "check": False}
    monkeypatch.setattr("sys.argv", ["-", json.dumps(asked)])
    format_.main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("mkfs", "said"),
    [
        ("echo half >$4; printf 'Input/output error \\377' >&2; exit 1", "exited with 1: Input/output error"),
        ("echo half >$4; exec sleep 60", "did not end within 0.5 s"),
    ],
    ids=["failed", "endless"],
)
def test_a_failure_of_mkfs_does_not_claim_that_nothing_was_written(
    device: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mkfs: str, said: str
) -> None:
    write_program(device.with_name("mkfs.ext4"), mkfs)
    answer = formatted(device, monkeypatch, capsys)
    assert (answer["made"], device.read_text()) == ([], "half\n")
    assert answer["failure"]["says"].startswith(f"mkfs.ext4 -q -L gpuprov {device} {said}")
    assert answer["failure"]["says"].endswith("may have a part of a file system now")
    assert "`wipefs --all`" in answer["failure"]["do"]
    assert "nothing" not in answer["failure"]["do"].replace("if nothing on it is needed", "")


def test_to_a_device_that_is_no_longer_empty_nothing_was_written(
    device: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(format_, "format_objection", lambda *_: (f"there is ext4 on {device}", None))
    failure = formatted(device, monkeypatch, capsys)["failure"]
    assert failure["says"] == f"there is ext4 on {device}, which was empty a moment ago"
    assert failure["do"].endswith("gpuprov wrote nothing to it")
