"""Parts of the campaign `agree`: random changes, their reversal, and the judgement of both witnesses."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpuprov.drift.observations import OBSERVERS
from gpuprov.model.lock import read_lock
from gpuprov.roles import UNITS
from gpuprov_lab import Node
from tests import RECORDED_LOCK
from tests.campaign._agree_change import Change, Draw, put, unit_files
from tests.campaign._agree_node import Place, Snapshot
from tests.campaign._agree_others import BENIGN, UNKNOWN
from tests.campaign._agree_rounds import Outcome, Rounds, drawn, table
from tests.campaign._agree_stack import OF_THE_STACK
from tests.campaign._agree_system import OF_THE_SYSTEM
from tests.campaign._agree_trace import recorded
from tests.campaign._agree_witnesses import Heard

DRAWS: tuple[Draw, ...] = (*OF_THE_SYSTEM, *OF_THE_STACK, *UNKNOWN, *BENIGN)
EFFECTS = dict.fromkeys(BENIGN, ("benign",)) | dict.fromkeys(UNKNOWN, ("unknown",))
SEEDS = range(60)
FOLDERS = ("etc", "usr", "lib", "opt", "root", "home", "var")
"""Folders that are on the node's own file system, and so can be restored."""
BREAKS = Change("a", "one", "true", ("/etc/a",), checks=("ssh.",))
OTHER = Change("b", "two", "true", ("/etc/b",), checks=("gpu.clocks",))
UNKNOWN_ONE = Change("c", "three", "true", effect="unknown")
HARMLESS = Change("d", "four", "true", effect="benign")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A node with the recorded lock and the recorded files of its services."""
    root = tmp_path / "root"
    for path in recorded():
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.lstrip("/")).write_text("one\ntwo\n")
    (root / "usr/lib/modules/6.1.0-test").mkdir(parents=True)
    (root / "lib/systemd/system").mkdir(parents=True)
    for unit in UNITS.values():
        (root / "lib/systemd/system" / unit).touch()
    [group] = read_lock(RECORDED_LOCK).groups.values()
    node = Node("node1", "debian12", None, "", (), tmp_path)
    return Place(node, group, recorded())


def test_services_open_files_that_changes_are_drawn_from(place: Place) -> None:
    assert len(place.opened) > 50
    assert {"/etc/ssh/sshd_config", "/etc/environment", "/etc/docker/daemon.json"} <= set(place.opened)


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_a_change_is_complete_and_expects_only_known_checks(draw: Draw, place: Place) -> None:
    dice = Random(1)  # noqa: S311 - dice, not secrets
    found = [change for _ in SEEDS if (change := draw(dice, place))]
    assert all(change.effect in EFFECTS.get(draw, ("breaks", "unknown")) for change in found)
    assert [change.name for change in found if change.effect == "breaks" and not change.checks] == []
    for change in found:
        assert all(any(check.startswith(each) for check in OBSERVERS) for each in change.checks), change
        assert all(path.partition("/")[2].partition("/")[0] in FOLDERS for path in change.touches), change
        text = f"{change.do}\n{change.then}\n{change.undo}"
        assert subprocess.run(["sh", "-nc", text], check=False).returncode == 0, text


def test_a_seed_draws_the_same_again_and_nothing_that_clashes(place: Place) -> None:
    for seed in SEEDS:
        changes = drawn(seed, place, benign=False)
        assert changes == drawn(seed, place, benign=False)
        assert 1 <= len(changes) <= 3
        assert not any(one.clashes(two) for one in changes for two in changes if one is not two)
    assert {change.effect for seed in SEEDS for change in drawn(seed, place, benign=True)} == {"benign"}


def test_changes_of_one_path_or_of_a_folder_and_its_file_clash() -> None:
    folder = Change("e", "five", "true", ("/etc/a.d",))
    assert BREAKS.clashes(Change("e", "six", "true", ("/etc/a",)))
    assert folder.clashes(Change("f", "seven", "true", ("/etc/a.d/file",)))
    assert not folder.clashes(BREAKS)


@pytest.mark.parametrize(
    ("before", "last"),
    [("", "x 'y'\n"), ("a\n", "a\nx 'y'\n"), ("a", "a\nx 'y'\n"), ("a\n\n", "a\n\nx 'y'\n")],
)
def test_lines_are_added_first_or_last(tmp_path: Path, before: str, last: str) -> None:
    path = tmp_path / "file"
    for first, expected in ((False, last), (True, f"x 'y'\n{before}")):
        path.write_text(before)
        subprocess.run(["sh", "-ec", put(str(path), "x 'y'", first=first)], check=True)
        assert path.read_text() == expected


def test_the_links_of_a_unit_are_restored_with_their_folder(place: Place) -> None:
    link = "/etc/systemd/system/x.target.wants/gpuprov-firewall.service"
    place.at("/var/lib").mkdir(parents=True)
    place.at(link).parent.mkdir(parents=True)
    place.at(link).symlink_to("/etc/systemd/system/gpuprov-firewall.service")
    snapshot = Snapshot(place.node.root)
    snapshot.take(unit_files(place, "gpuprov-firewall.service"))
    place.at(link).unlink()
    place.at(link).parent.rmdir()
    snapshot.put_back()
    assert place.at(link).is_symlink()


def state(root: Path) -> dict[str, tuple[object, ...]]:
    """Return path → mode, inode, time and content of everything below a folder but folders' times."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        about = path.lstat()
        if path.is_symlink():
            found[str(path)] = (path.readlink(),)
        elif path.is_dir():
            found[str(path)] = (about.st_mode,)
        else:
            found[str(path)] = (
                about.st_mode,
                about.st_ino,
                about.st_mtime_ns,
                about.st_nlink,
                path.read_bytes(),
            )
    return found


def test_a_change_without_an_effect_on_its_paths_is_known(tmp_path: Path) -> None:
    for folder in ("etc", "var/lib"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/there").write_text("one\n")
    snapshot = Snapshot(tmp_path)
    snapshot.take(("/etc/there", "/etc/folder/missing"))
    assert not snapshot.differs()
    (tmp_path / "etc/folder").mkdir()
    assert snapshot.differs()
    (tmp_path / "etc/folder").rmdir()
    (tmp_path / "etc/there").chmod(0o600)
    assert snapshot.differs()
    snapshot.put_back()
    assert not snapshot.differs()


def test_a_reversal_restores_content_inode_and_times(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc/unit.d").mkdir(parents=True)
    (root / "var/lib").mkdir(parents=True)
    for name in ("edited", "removed", "replaced", "untouched", "unit.d/one", "chmod"):
        (root / "etc" / name).write_text(name)
        os.utime(root / "etc" / name, (1, 1))
    (root / "etc/link").symlink_to("edited")
    before = state(root)
    snapshot = Snapshot(root)
    names = (
        "edited",
        "removed",
        "replaced",
        "untouched",
        "unit.d",
        "chmod",
        "link",
        "new",
        "folder/new",
        "folder/newer",
    )
    snapshot.take(tuple(f"/etc/{name}" for name in names))
    do = """
    echo more >>edited; rm removed link; echo x >other; mv other replaced; chmod 600 chmod
    rm -r unit.d; mkdir unit.d; echo x >unit.d/two
    mkdir removed folder; echo x | tee new folder/new folder/newer removed/x >link
    """
    subprocess.run(["sh", "-ec", do], cwd=root / "etc", check=True)
    assert state(root) != before
    snapshot.put_back()
    assert state(root) == before


class PaperRounds(Rounds):
    """Rounds in which the witnesses say what is written, for each number of changes."""

    said: dict[tuple[str, ...], Heard]

    def made(self, changes: Sequence[Change]) -> Heard:
        """Return the recorded reports about these changes."""
        return self.said[tuple(change.name for change in changes)]


def run(monkeypatch: pytest.MonkeyPatch, changes: list[Change], **said: Heard) -> list[Outcome]:
    """Run the rounds with these changes and reports; return their outcomes."""
    nothing: Any = None
    rounds = PaperRounds(nothing, nothing)
    rounds.said = {tuple(names.split("_")): heard for names, heard in said.items()}
    monkeypatch.setattr("tests.campaign._agree_rounds.drawn", lambda *_, **__: changes)
    return list(rounds.run(7, benign=False))


def heard(drift: str = "", verify: str = "", proven: str = "") -> Heard:
    """Return the reports of drift, verify and proof, each as names separated by blanks."""
    return Heard(*(frozenset(each.split()) for each in (drift, verify, proven)))


@pytest.mark.parametrize(
    ("change", "said", "result"),
    [
        (BREAKS, heard("ssh.options", "ssh.options"), "both"),
        (BREAKS, heard("ssh.options", ""), "drift only"),
        (BREAKS, heard("", "ssh.options"), "verify only"),
        (BREAKS, heard("ssh.options", "ssh.options ssh.ports"), "verify only"),
        (BREAKS, heard("", "", "docker.gpus"), "verify only"),
        (BREAKS, heard("ssh.options", "ssh.options", "docker.gpus"), "both"),
        (BREAKS, heard(), "missed"),
        (UNKNOWN_ONE, heard(), "silent"),
        (UNKNOWN_ONE, heard("gpu.clocks", "gpu.clocks"), "both"),
        (HARMLESS, heard(), "silent"),
        (HARMLESS, heard("gpu.clocks", "gpu.clocks"), "false alarm"),
    ],
)
def test_one_change_is_judged_by_all_that_is_said(
    monkeypatch: pytest.MonkeyPatch, change: Change, said: Heard, result: str
) -> None:
    [outcome] = run(monkeypatch, [change], **{change.name: said})
    assert outcome.result == result


def test_changes_that_explain_all_that_is_said_are_not_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    both = "ssh.options gpu.clocks"
    outcomes = run(monkeypatch, [BREAKS, OTHER, UNKNOWN_ONE], one_two_three=heard(both, both))
    assert [(each.name, each.result) for each in outcomes] == [
        ("one", "both"),
        ("two", "both"),
        ("three", "silent"),
    ]


def test_what_no_change_explains_is_of_the_only_unknown_one(monkeypatch: pytest.MonkeyPatch) -> None:
    both = heard("ssh.options pins.hold", "ssh.options pins.hold")
    outcomes = run(monkeypatch, [BREAKS, UNKNOWN_ONE], one_three=both)
    assert [sorted(each.heard.drift) for each in outcomes] == [["ssh.options"], ["pins.hold"]]
    assert [each.result for each in outcomes] == ["both", "both"]
    proven = heard("ssh.options", "ssh.options", "docker.gpus")
    alone = {"one": heard("ssh.options", "ssh.options"), "three": heard("", "", "docker.gpus")}
    found = run(monkeypatch, [BREAKS, UNKNOWN_ONE], one_three=proven, **alone)
    assert [each.result for each in found] == ["both", "verify only"]


def test_a_conspicuous_round_is_tried_change_by_change(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = run(
        monkeypatch,
        [BREAKS, OTHER],
        one_two=heard("ssh.options", "ssh.options gpu.clocks"),
        one=heard("ssh.options", "ssh.options"),
        two=heard("", "gpu.clocks"),
    )
    assert [each.result for each in outcomes] == ["both", "verify only"]
    assert list(table(outcomes))[-1].split() == ["all", "1", "0", "1", "0", "0", "0"]


def test_what_is_seen_only_together_is_an_outcome_too(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = {"one": heard("ssh.options", "ssh.options"), "two": heard("gpu.clocks", "gpu.clocks")}
    outcomes = run(
        monkeypatch, [BREAKS, OTHER], one_two=heard("gpu.clocks", "gpu.clocks ssh.options"), **silent
    )
    assert [(each.kind, each.result) for each in outcomes][-1] == ("together", "verify only")
    assert "seed 7" in str(outcomes[-1])


class Bench:
    """Witnesses that give one report after the other."""

    def __init__(self, *reports: Heard) -> None:
        self.reports = list(reports)

    def hear(self) -> Heard:
        """Return the next of the prepared reports."""
        return self.reports.pop(0)


def test_witnesses_that_disagree_are_heard_again() -> None:
    nothing: Any = None
    one, both = heard("ssh.loaded", ""), heard("", "")
    bench: Any = Bench(one, both, one, one, both)
    rounds = Rounds(nothing, bench)
    assert rounds._heard([BREAKS, OTHER]) == both
    assert rounds.unsteady == ["one + two; drift: ssh.loaded; verify: nothing"]
    assert rounds._heard([BREAKS]) == one
    assert rounds._heard([BREAKS]) == both
    assert len(rounds.unsteady) == 1
