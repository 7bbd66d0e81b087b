"""Files and folders that the dead man's switch restores, in a folder of this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import ROOT
from tests.unit.programs import write_program

SCRIPT = (ROOT / "gpuprov/access/node/deadman.sh").read_text(encoding="utf-8")
FILES = (ROOT / "gpuprov/access/node/files.sh").read_text(encoding="utf-8")


def give_back(
    folder: Path, paths: str, present: str, *, owners: str = "", selinux: bool = False, code: int = 0
) -> None:
    """Run the switch's restore of files, which ends with `code`; its state is in a folder."""
    for name, text in {"owners": owners, "paths": paths, "present": present}.items():
        (folder / "state" / name).write_text(f"{text}\n" * bool(text))
    write_program(folder / "restorecon", f'echo "$1" >>{folder}/labelled; exit 1')
    assert switch(folder, "give_back", selinux=selinux).returncode == code


def switch(folder: Path, call: str, *, selinux: bool = False) -> subprocess.CompletedProcess[str]:
    """Call one of the switch's functions, with its state and programs in a folder."""
    functions = SCRIPT.partition("\ncase $1 in\narm)")[0].replace(". files.sh\n. sshd.sh\n", FILES)
    functions = functions.replace("home=/var/lib/gpuprov/deadman", f"home={folder}/state")
    functions = functions.replace("saved_etc=/etc/", f"saved_etc={folder}/none/")
    functions = functions.replace("/sys/fs/selinux/enforce", str(folder if selinux else folder / "none"))
    return subprocess.run(
        ["sh", "-c", f"{functions}\n{call}"], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip


SAVE = "sshd_unit() { echo ssh; }\nsave ops"


@pytest.mark.parametrize("selinux", [True, False])
def test_a_folder_of_keys_that_was_removed_returns_with_its_label(tmp_path: Path, selinux: bool) -> None:
    """Check ~/.ssh, whose owner and mode the switch records, and a folder that it has copied."""
    keys, options = tmp_path / "home/.ssh", tmp_path / "etc/ssh"
    saved = tmp_path / "state/saved"
    (saved / str(options)[1:] / "sshd_config.d").mkdir(parents=True)
    for folder in (keys.parent, options.parent):
        folder.mkdir()
    owners = f"700 {os.geteuid()}:{os.getegid()} {keys}"
    give_back(tmp_path, f"{options}", f"{options}", owners=owners, selinux=selinux)
    made = [str(keys), str(options), str(options / "sshd_config.d")]
    assert all(Path(each).is_dir() for each in made)
    labelled = tmp_path / "labelled"
    assert (labelled.read_text().split() if labelled.exists() else []) == (made if selinux else [])


def test_a_name_with_a_line_break_names_no_other_file(tmp_path: Path) -> None:
    """Have such names in ~/.ssh/authorized_keys, which a user can make a folder.

    `rm` only records its arguments, as an error would delete files of this machine.
    """
    keys = tmp_path / "home/keys"
    saved = tmp_path / "state/saved" / str(keys)[1:]
    hostile = keys / "x\n/etc"
    for folder in (saved, hostile):
        folder.mkdir(parents=True)
    (hostile / "passwd").write_text("")
    (keys / "new").write_text("")
    write_program(tmp_path / "rm", f'echo "$PWD" "$@" >>{tmp_path}/removed')
    give_back(tmp_path, f"{keys}", f"{keys}")
    assert (tmp_path / "removed").read_text() == f"{keys} -rf ./new\n"


def test_a_saved_name_with_a_line_break_is_not_restored_as_two(tmp_path: Path) -> None:
    keys = tmp_path / "home/keys"
    saved = tmp_path / "state/saved" / str(keys)[1:]
    for folder in (keys, saved / "x\n"):
        folder.mkdir(parents=True)
    (saved / "x\n/second").write_text("")
    (saved / "own").write_text("")
    give_back(tmp_path, f"{keys}", f"{keys}")
    assert [each.name for each in keys.rglob("*")] == ["own"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_nothing_is_removed_through_a_link_of_a_user(tmp_path: Path) -> None:
    """Have ~/.ssh of the login be a link to another user's, without keys when the switch was armed."""
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (tmp_path / "state/saved", home, other):
        folder.mkdir(parents=True)
    (other / "authorized_keys").write_text("theirs\n")
    (home / ".ssh").symlink_to(other)
    os.chown(home, 12345, 12345)
    give_back(tmp_path, f"{home}/.ssh/authorized_keys", "/nowhere", code=1)
    assert (other / "authorized_keys").read_text() == "theirs\n"


def test_a_folder_in_place_of_keys_is_not_saved(tmp_path: Path) -> None:
    """Save none of its names: its user could have root follow them."""
    keys = tmp_path / "home/.ssh"
    for folder in (tmp_path / "state", tmp_path / "none", keys / "authorized_keys"):
        folder.mkdir(parents=True)
    for name, text in {"getent": f"echo x:x:0:0:x:{keys.parent}:/bin/sh", "systemctl": "exit 1"}.items():
        write_program(tmp_path / name, text)
    done = switch(tmp_path, SAVE)
    assert done.returncode == 0, done.stderr
    paths = (tmp_path / "state/paths").read_text().splitlines()
    assert [each for each in paths if each.startswith(str(keys))] == [f"{keys}/authorized_keys2"] * 2


def test_keys_that_become_a_folder_meanwhile_are_not_saved(tmp_path: Path) -> None:
    """Refuse the folder: a restore would follow the names in it, of which one can be a link by then."""
    keys = tmp_path / "home/.ssh/authorized_keys"
    for folder in (tmp_path / "state", tmp_path / "none", keys.parent):
        folder.mkdir(parents=True)
    keys.write_text("")
    for name, text in {"getent": f"echo x:x:0:0:x:{tmp_path}/home:/bin/sh", "systemctl": "exit 1"}.items():
        write_program(tmp_path / name, text)
    write_program(tmp_path / "cp", f'case $2 in {keys}) mkdir "$3" ;; *) : >"$3" ;; esac')
    done = switch(tmp_path, SAVE)
    assert (done.returncode, done.stderr) == (1, f"{keys} is a folder\n")
