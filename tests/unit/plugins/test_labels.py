"""Labels of SELinux: those of the policy for what is new, the old one for what is replaced."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import gpuprov_selinux
import pytest
from gpuprov_lines import edit_lines
from gpuprov_replace import make_folders, replace

from gpuprov.access.node import keys
from tests.unit.programs import write_program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="labels are root's")
OWNER = f"{os.geteuid()}:{os.getegid()}"
Labels = Callable[[Path], str]


@pytest.fixture(params=[True, False], ids=["selinux", "none"])
def selinux(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Play a policy that answers with kind and path, and knows no path with `unknown`."""
    program = tmp_path / "matchpathcon"
    write_program(
        program,
        'case $4 in *unknown*) echo u:r:default_t:s0 ;; *none*) echo "<<none>>" ;; *) echo "u:$3:$4" ;; esac',
    )
    on = tmp_path / "enforce"
    on.write_text("1")
    monkeypatch.setattr(gpuprov_selinux, "MATCHPATHCON", ("/nonexistent", str(program)))
    monkeypatch.setattr(gpuprov_selinux, "ENFORCE", str(on if request.param else tmp_path / "off"))
    monkeypatch.setattr(gpuprov_selinux, "ATTRIBUTE", "user.label")
    return bool(request.param)


def label(path: Path) -> str:
    """Return a path's label; "" without one."""
    has = "user.label" in os.listxattr(path)
    return os.getxattr(path, "user.label").decode() if has else ""


def of_policy(kind: str, path: Path, selinux: bool) -> str:
    """Return the label that the played policy has for a path."""
    return f"u:{kind}:{path}\0" if selinux else ""


def test_a_new_file_and_its_folders_have_the_labels_of_their_own_paths(tmp_path: Path, selinux: bool) -> None:
    """Check the final names: the policy knows no temporary one."""
    folder = tmp_path / "a/b"
    make_folders(str(folder))
    replace(str(folder / "file"), b"new\n")
    assert label(folder / "file") == of_policy("file", folder / "file", selinux)
    assert [label(each) for each in (folder.parent, folder)] == [
        of_policy("dir", each, selinux) for each in (folder.parent, folder)
    ]


def test_a_replaced_file_keeps_the_label_that_the_site_gave_it(tmp_path: Path, selinux: bool) -> None:
    path = tmp_path / "file"
    path.write_text("old\n")
    for given in ("", "chosen\0"):
        if given:
            os.setxattr(path, "user.label", given.encode())
        replace(str(path), b"new\n")
        edit_lines(str(path), lambda _line: False, [b"more"])
        assert label(path) == given


@pytest.mark.parametrize("name", ["unknown", "none"])
def test_a_path_without_a_rule_keeps_the_type_of_its_folder(tmp_path: Path, selinux: bool, name: str) -> None:
    make_folders(str(tmp_path / name))
    replace(str(tmp_path / name / "file"), b"")
    assert not label(tmp_path / name)
    assert not label(tmp_path / name / "file")


def test_keys_of_a_new_account_can_be_read_by_sshd(tmp_path: Path, selinux: bool) -> None:
    """Check ~/.ssh, which has the type of the home folder without a label of its own."""
    file = tmp_path / "home/.ssh/authorized_keys"
    file.parent.parent.mkdir()
    keys.authorize(str(file), OWNER, "ops", f"ssh-ed25519 {'A' * 68} me")
    assert label(file) == of_policy("file", file, selinux)
    assert label(file.parent) == of_policy("dir", file.parent, selinux)
    assert not label(file.parent.parent)
