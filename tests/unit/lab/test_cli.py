"""`gpuprov lab down` and the labs that it removes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import gpuprov_lab
from gpuprov_lab import Lab
from gpuprov_lab.cli import command


@pytest.mark.parametrize("words", [["--all", "--name", "one"], ["--all", "node1"]])
def test_all_labs_and_one_by_name_is_a_contradiction(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpuprov_lab, "lab_names", lambda: pytest.fail("it went on"))
    result = CliRunner().invoke(command, ["down", *words])
    assert "all labs" in str(result.exception)


def test_what_a_living_process_uses_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for preparation in ("require_root", "make_folders"):
        monkeypatch.setattr(f"gpuprov_lab.lab.{preparation}", lambda: None)
    monkeypatch.setattr("gpuprov_lab.lab.LABS", tmp_path)
    gone: list[str] = []
    monkeypatch.setattr(Lab, "down", lambda self, names=None: gone.append(self.name))
    for name in ("used", "left"):
        (tmp_path / name).mkdir()
    with Lab("used"):
        said = CliRunner().invoke(command, ["down", "--all"], catch_exceptions=False).stderr
        assert gone == ["left"]
        assert "used is in use" in said
    assert gone == ["left", "used"]
    CliRunner().invoke(command, ["down", "--all"], catch_exceptions=False)
    assert gone[2:] == ["left", "used"]
