"""gpuprov_files, which writes and removes a role's files on a node."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpuprov_files
import gpuprov_place
import pytest

Play = Callable[..., dict[str, Any]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Play:
    """Function that runs gpuprov_files and returns its answer."""
    monkeypatch.setattr(gpuprov_files, "OWNER", (os.geteuid(), os.getegid()))
    stated = {
        "mode": "0644",
        "keep_mode": False,
        "backup": False,
        "validate": None,
        "wanted": True,
        "block": False,
        "replaces": None,
    }

    def run(*, check: bool = False, **options: Any) -> dict[str, Any]:
        """Run gpuprov_files with these options; return its answer."""
        asked = {"files": [], "remove": [], "undo": {}, "check": check, **options}
        asked["files"] = [{**stated, **each} for each in asked["files"]]
        monkeypatch.setattr("sys.argv", ["-", json.dumps(asked)])
        gpuprov_files.main()
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return run


@pytest.fixture
def unit(tmp_path: Path) -> dict[str, str]:
    """Return path and content of a systemd unit that does not exist yet."""
    return {"path": str(tmp_path / "system/our.service"), "content": "[Unit]\nDescription=Größe\n"}


def mode(path: str) -> int:
    """Return the permissions of a file, with its set-id bits."""
    return Path(path).stat().st_mode & 0o7777


def test_a_file_comes_with_its_folder_and_is_left_alone_afterwards(play: Play, unit: dict[str, str]) -> None:
    first, second = play(files=[unit]), play(files=[unit])
    assert (first["changed"], first["written"]) == (True, [unit["path"]])
    assert Path(unit["path"]).read_text() == unit["content"]
    assert mode(unit["path"]) == 0o644
    assert mode(str(Path(unit["path"]).parent)) == 0o755
    assert (second["changed"], second["written"], second["diff"]) == (False, [], [])


def test_check_says_the_same_and_changes_nothing(play: Play, unit: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("there\n")
    options = {"files": [unit], "remove": [str(other)]}
    said = play(check=True, **options)
    assert not Path(unit["path"]).exists()
    assert other.exists()
    assert said["diff"][0] == {
        "before": "",
        "after": unit["content"],
        "before_header": unit["path"],
        "after_header": unit["path"],
    }
    done = play(**options)
    assert said == done
    assert not other.exists()


def test_a_file_that_is_too_large_is_named(play: Play, unit: dict[str, str]) -> None:
    play(files=[unit])
    os.truncate(unit["path"], 200 << 30)  # sparse
    said = f"{unit['path']}: has 214748364800 bytes; expected at most 16777216"
    assert play(files=[unit]) == {"failure": {"says": said}}


def test_only_the_mode_may_be_wrong(play: Play, unit: dict[str, str]) -> None:
    play(files=[unit])
    Path(unit["path"]).chmod(0o666)
    answer = play(files=[unit])
    assert (answer["changed"], answer["written"], answer["diff"]) == (True, [unit["path"]], [])
    assert mode(unit["path"]) == 0o644


def test_a_file_of_the_administrator_keeps_its_owner_and_mode(
    play: Play, unit: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep them: a daemon.json can have the password of a proxy."""
    kept = {**unit, "keep_mode": True, "backup": True}
    assert play(files=[kept])["written"] == [unit["path"]]
    assert mode(unit["path"]) == 0o644  # a new one
    Path(unit["path"]).chmod(0o600)
    monkeypatch.setattr(gpuprov_files, "OWNER", (12345, 12345))
    assert play(files=[kept])["changed"] is False
    done = play(files=[{**kept, "content": "[Service]\n"}])
    assert (done["written"], mode(unit["path"])) == ([unit["path"]], 0o600)
    assert Path(unit["path"]).stat().st_uid == os.geteuid()
    assert mode(done["former"][unit["path"]]) == 0o600


def test_a_file_in_the_place_of_a_link_is_no_more_readable_than_its_target(
    play: Play, unit: dict[str, str], tmp_path: Path
) -> None:
    target, link = tmp_path / "kept.json", tmp_path / "daemon.json"
    target.write_text("{}")
    target.chmod(0o640)
    link.symlink_to(target)
    play(files=[{"path": str(link), "content": '{"a": 1}', "keep_mode": True}])
    assert (link.is_symlink(), mode(str(link)), target.read_text()) == (False, 0o640, "{}")


def test_what_is_not_wanted_goes(play: Play, unit: dict[str, str]) -> None:
    """Check that an unwanted file is removed, once."""
    play(files=[unit])
    unwanted = {**unit, "wanted": False}
    assert play(files=[unwanted])["removed"] == [unit["path"]]
    assert not Path(unit["path"]).exists()
    assert play(files=[unwanted])["changed"] is False


def test_nothing_is_touched_when_one_content_is_not_valid(play: Play, unit: dict[str, str]) -> None:
    script = {"path": unit["path"] + ".sh", "content": "case x in\n", "validate": "sh -n %s"}
    answer = play(files=[unit, script])
    says = answer["failure"]["says"]
    assert re.match(rf"{script['path']} would not be valid: {script['path']}: \d+: Syntax error", says)
    assert "yntax error" in answer["stderr"]
    assert not Path(unit["path"]).exists()


def test_what_a_validator_says_is_reported_without_what_only_points_at_it() -> None:
    said = "/tmp/half:3:8-9: Error: Could not resolve protocol name\n\tmeta l4proto x\n\t        ^^\n"
    result = gpuprov_files.complaint(said, "/tmp/half", "/etc/x.nft")
    assert result == "/etc/x.nft:3:8-9: Error: Could not resolve protocol name; meta l4proto x"
    assert gpuprov_files.complaint("", "/tmp/half", "/etc/x.nft") == "no reason given"


def test_a_content_is_tried_under_a_name_of_the_same_kind(play: Play, unit: dict[str, str]) -> None:
    answer = play(files=[{**unit, "validate": "sh -c 'case $1 in *.service) ;; *) exit 1;; esac' try %s"}])
    assert answer["written"] == [unit["path"]]


def test_undo_brings_back_what_was_there(play: Play, unit: dict[str, str], tmp_path: Path) -> None:
    """Check that undo restores a changed file and removes a new one."""
    there = tmp_path / "daemon.json"
    there.write_text("{}\n")
    there.chmod(0o600)
    files = [{"path": str(there), "content": "{1}\n", "backup": True}, {**unit, "backup": True}]
    former = play(files=files)["former"]
    assert former[unit["path"]] is None
    assert Path(former[str(there)]).read_text() == "{}\n"
    play(undo=former)
    assert there.read_text() == "{}\n"
    assert mode(str(there)) == 0o600
    assert not Path(unit["path"]).exists()
    assert play(undo={})["changed"] is False


def test_a_folder_in_the_way_is_named(play: Play, unit: dict[str, str]) -> None:
    Path(unit["path"]).mkdir(parents=True)
    assert play(files=[unit])["failure"]["says"] == f"{unit['path']}: Is a directory"


def test_a_link_is_replaced_and_where_it_leads_is_left_alone(
    play: Play, unit: dict[str, str], tmp_path: Path
) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.write_text("theirs\n")
    ours.symlink_to(theirs)
    play(files=[{**unit, "path": str(ours)}])
    assert (ours.is_symlink(), ours.read_text()) == (False, unit["content"])
    assert theirs.read_text() == "theirs\n"


@pytest.mark.parametrize("swapped", [False, True], ids=["alone", "swapped"])
def test_a_backup_has_only_what_was_read_and_no_set_id_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: bool
) -> None:
    """Read a file that its owner replaces by a link right afterwards."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for path, bits in ((theirs, 0o6755), (ours, 0o7640)):
        path.write_text(f"{path.name}\n")
        path.chmod(bits)
    os.utime(ours, ns=(10**9, 2 * 10**9))
    real = gpuprov_place.Place.read

    def read(place: gpuprov_place.Place, content: bool = True) -> gpuprov_place.Old:
        """Read the place; then another user may replace it by a link."""
        old = real(place, content)
        if swapped and content:
            ours.unlink()
            ours.symlink_to(theirs)
        return old

    monkeypatch.setattr(gpuprov_place.Place, "read", read)
    backup = Path(str(gpuprov_files.back_up(str(ours))))
    assert (backup.read_text(), mode(str(backup))) == ("ours\n", 0o640)
    assert backup.stat().st_mtime_ns == 2 * 10**9


OTHERS = """\
# The site's.
HostKey /etc/ssh/a
UsePAM yes
hostkey=/etc/ssh/b
Match User git
    X11Forwarding no
"""


@pytest.fixture
def block(tmp_path: Path) -> dict[str, Any]:
    """Return a block for a file of others, which exists."""
    path = tmp_path / "sshd_config"
    path.write_text(OTHERS)
    path.chmod(0o640)
    return {"path": str(path), "content": "Port 22\nUsePAM no\n", "mode": "0600", "block": True}


def test_a_block_comes_before_the_lines_of_others_and_is_replaced(play: Play, block: dict[str, Any]) -> None:
    path = Path(block["path"])
    first, second = play(files=[block]), play(files=[block])
    whole = f"# BEGIN gpuprov\n{block['content']}# END gpuprov\n{OTHERS}"
    assert path.read_text() == whole
    assert mode(block["path"]) == 0o640
    assert (first["written"], second["changed"]) == ([block["path"]], False)
    assert first["diff"][0]["after"] == whole
    play(files=[{**block, "content": "Port 2222\n"}])
    assert path.read_text() == f"# BEGIN gpuprov\nPort 2222\n# END gpuprov\n{OTHERS}"


def test_a_block_that_is_not_wanted_goes_and_the_file_stays(play: Play, block: dict[str, Any]) -> None:
    play(files=[block])
    unwanted = {**block, "wanted": False}
    assert play(files=[unwanted])["written"] == [block["path"]]
    assert Path(block["path"]).read_text() == OTHERS
    assert play(files=[unwanted])["changed"] is False
    Path(block["path"]).unlink()
    assert play(files=[unwanted])["changed"] is False
    assert not Path(block["path"]).exists()


def test_lines_of_others_that_would_add_up_are_commented_out(play: Play, block: dict[str, Any]) -> None:
    play(files=[{**block, "replaces": r"(?i)\s*HostKey[\s=]"}])
    text = Path(block["path"]).read_text()
    mark = "# replaced by gpuprov: "
    assert f"\n{mark}HostKey /etc/ssh/a\nUsePAM yes\n{mark}hostkey=/etc/ssh/b\nMatch" in text
    assert play(files=[{**block, "replaces": r"(?i)\s*HostKey[\s=]"}])["changed"] is False


def test_the_whole_file_with_a_block_is_tried_and_check_changes_nothing(
    play: Play, block: dict[str, Any]
) -> None:
    says = play(files=[{**block, "validate": "grep -c nothing %s"}])["failure"]["says"]
    assert says.startswith(f"{block['path']} would not be valid")
    tried = {**block, "validate": "sh -c 'grep -q ^Port $1 && grep -q ^Match $1' try %s"}
    assert play(check=True, files=[tried])["written"] == [block["path"]]
    assert Path(block["path"]).read_text() == OTHERS
    assert play(files=[tried])["written"] == [block["path"]]


@pytest.mark.parametrize("marks", ["# BEGIN gpuprov\n", "# END gpuprov\n# BEGIN gpuprov\n"])
def test_a_block_without_its_end_is_refused(play: Play, block: dict[str, Any], marks: str) -> None:
    Path(block["path"]).write_text(marks + OTHERS)
    assert "needs one line '# BEGIN gpuprov' and one" in play(files=[block])["failure"]["says"]
    assert Path(block["path"]).read_text() == marks + OTHERS


def test_a_line_that_another_program_adds_meanwhile_is_kept(
    play: Play, block: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(block["path"])
    really = gpuprov_files.validate

    def validate(file: dict[str, Any]) -> None:
        """Add a line after the file was read."""
        path.write_text(f"{path.read_text()}    AllowTcpForwarding no\n")
        really(file)

    monkeypatch.setattr(gpuprov_files, "validate", validate)
    play(files=[block])
    assert path.read_text().startswith("# BEGIN gpuprov\nPort 22\n")
    assert path.read_text().endswith(f"{OTHERS}    AllowTcpForwarding no\n")
