"""Verbs of other distributions: found if installed, one line if not; no other one replaces a verb."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from gpuprov import __version__
from gpuprov.cli.common import group
from gpuprov.cli.common.added import summaries
from gpuprov.cli.common.group import gpuprov, run
from gpuprov.cli.common.verbs import ADDED, VERBS, overview

LINE = "create disposable nodes on this machine, with simulated GPUs"
TYPE = (
    "in a checkout: scripts/release wheel dist lab && pip install gpuprov-lab --no-index --find-links dist\n"
)


@pytest.fixture
def without_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search path without the folder that has the metadata of gpuprov-lab."""
    kept = [folder for folder in sys.path if not list(Path(folder).glob("gpuprov_lab-*.dist-info"))]
    assert len(kept) == len(sys.path) - 1
    monkeypatch.setattr(sys, "path", kept)


def distribution(folder: Path, name: str, version: str, *verbs: str) -> None:
    """Write the metadata of a distribution with entry points for verbs, and a module that fails."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nSummary: of another\n"
    )
    points = "".join(f"{verb} = replacing:command\n" for verb in verbs)
    (metadata / "entry_points.txt").write_text(f"[gpuprov.verbs]\n{points}")
    (folder / "replacing.py").write_text("raise AssertionError('imported')\n")


def test_the_lab_is_listed_where_it_is_installed_and_has_its_commands() -> None:
    assert summaries() == {"lab": LINE}
    assert f"\n  lab        {LINE}\n" in overview(summaries())
    command = gpuprov.get_command(click.Context(gpuprov), "lab")
    assert isinstance(command, click.Group)
    assert sorted(command.commands) == ["down", "list", "mirror", "reboot", "ssh", "up"]


@pytest.mark.usefixtures("without_lab")
def test_where_it_is_not_installed_one_line_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["lab"], ["lab", "--help"], ["lab", "up", "--nodes", "2"]):
        assert run(words) == 2
        out, err = capsys.readouterr()
        assert (out, err) == ("", f"gpuprov: the verb lab is in gpuprov-lab, which is not installed; {TYPE}")
    assert "lab " not in overview(summaries())
    assert gpuprov.list_commands(click.Context(gpuprov)) == list(VERBS)


@pytest.mark.usefixtures("without_lab")
def test_a_lab_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    distribution(tmp_path, "gpuprov-lab", "0.0.1", "lab")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert run(["lab", "list"]) == 2
    seen = f"gpuprov-lab 0.0.1 is installed; expected the version of gpuprov, {__version__}"
    assert capsys.readouterr().err == f"gpuprov: {seen}; {TYPE}"
    assert summaries() == {}


def test_another_distribution_neither_replaces_nor_adds_a_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = overview(summaries())
    distribution(tmp_path, "other", "1", *VERBS, *ADDED, "other")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert overview(summaries()) == before
    for verb in (*VERBS, *ADDED):
        assert run([verb, "--help"]) == 0, verb
    capsys.readouterr()
    assert run(["other"]) == 2
    assert "there is no verb 'other'" in capsys.readouterr().err
    assert "replacing" not in sys.modules


def test_no_verb_is_in_both_tables() -> None:
    assert not set(VERBS) & set(ADDED)


def test_entry_points_are_read_for_no_other_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    for reader in ("summaries", "_added"):
        monkeypatch.setattr(group, reader, lambda *_: pytest.fail("entry points were read"))
    for verb in VERBS:
        assert run([verb, "--help"]) == 0, verb


def test_the_overview_imports_nothing_that_takes_long() -> None:
    code = "import sys; from gpuprov.cli import main; sys.argv[1:] = []\n"
    code += "try: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert LINE in done.stdout
    loaded = set(done.stderr.split())
    assert "gpuprov.cli.common.added" in loaded
    assert not loaded & {"click", "importlib.metadata", "pathlib", "typing"}
