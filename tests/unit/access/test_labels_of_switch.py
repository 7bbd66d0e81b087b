"""Labels of SELinux for folders that the dead man's switch makes again, with a fake restorecon."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import ROOT
from tests.unit.programs import write_program

SCRIPT = (ROOT / "gpuprov/access/node/deadman.sh").read_text(encoding="utf-8")
FILES = (ROOT / "gpuprov/access/node/files.sh").read_text(encoding="utf-8")


@pytest.mark.parametrize("selinux", [True, False])
def test_a_folder_of_keys_that_was_removed_returns_with_its_label(tmp_path: Path, selinux: bool) -> None:
    """Check ~/.ssh, whose owner and mode the switch records, and a folder that it has copied."""
    keys, options = tmp_path / "home/.ssh", tmp_path / "etc/ssh"
    saved = tmp_path / "state/saved"
    (saved / str(options)[1:] / "sshd_config.d").mkdir(parents=True)
    for folder in (keys.parent, options.parent):
        folder.mkdir()
    owner = f"{os.geteuid()}:{os.getegid()}"
    for name, text in {
        "owners": f"700 {owner} {keys}",
        "paths": f"{options}",
        "present": f"{options}",
    }.items():
        (tmp_path / "state" / name).write_text(f"{text}\n")
    write_program(tmp_path / "restorecon", f'echo "$1" >>{tmp_path}/labelled; exit 1')
    functions = SCRIPT.partition("\ncase $1 in\narm)")[0].replace(". files.sh\n. sshd.sh\n", FILES)
    functions = functions.replace("home=/var/lib/gpuprov/deadman", f"home={tmp_path}/state")
    functions = functions.replace("saved_etc=/etc/", f"saved_etc={tmp_path}/none/")
    functions = functions.replace("/sys/fs/selinux/enforce", str(tmp_path if selinux else tmp_path / "none"))
    done = subprocess.run(
        ["sh", "-c", f"{functions}\ngive_back"], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = [str(keys), str(options), str(options / "sshd_config.d")]
    assert all(Path(each).is_dir() for each in made)
    labelled = tmp_path / "labelled"
    assert (labelled.read_text().split() if labelled.exists() else []) == (made if selinux else [])
