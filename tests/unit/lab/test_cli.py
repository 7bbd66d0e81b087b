"""`gpuprov lab down` and the labs that it removes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

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


def test_a_lab_that_a_killed_run_left_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for preparation in ("require_root", "make_folders"):
        monkeypatch.setattr(f"gpuprov_lab.lab.{preparation}", lambda: None)
    monkeypatch.setattr("gpuprov_lab.lab.LABS", tmp_path)
    monkeypatch.setattr(Lab, "up", lambda *_, **__: [])
    for name in ("kept", "left", "used"):
        (tmp_path / name).mkdir()
    (tmp_path / "left.use").touch()
    (tmp_path / "removed.use").touch()
    with Lab("used"):
        monkeypatch.setattr(Lab, "down", lambda self, names=None: None)
        said = CliRunner().invoke(command, ["up", "--name", "kept"], catch_exceptions=False).stderr
    lines = [line for line in said.splitlines() if "behind" in line]
    assert lines == ["lab: a run that was killed left the lab left behind; gpuprov lab down --name left"]


def test_what_reaches_a_node_is_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for preparation in ("require_root", "make_folders"):
        monkeypatch.setattr(f"gpuprov_lab.lab.{preparation}", lambda: None)
    monkeypatch.setattr("gpuprov_lab.lab.LABS", tmp_path)
    node = SimpleNamespace(name="node1", address="198.18.0.7")
    monkeypatch.setattr(Lab, "up", lambda *_, **__: [node])
    monkeypatch.setattr("gpuprov_lab.cli._show", lambda *_: None)
    said = CliRunner().invoke(command, ["up", "--name", "one"], catch_exceptions=False).stderr
    assert "gpuprov lab ssh --name one node1" in said
    assert (
        f"gpuprov up -i {tmp_path}/one/id_ed25519 --known-hosts {tmp_path}/one/known_hosts root@198.18.0.7"
        in said
    )


def test_a_mirror_without_a_fleet_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lab, "up", lambda *_, **__: pytest.fail("it went on"))
    result = CliRunner().invoke(command, ["up", "--mirror"])
    assert "--mirror without --fleet" in str(result.exception)
