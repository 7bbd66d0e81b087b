"""Programs that gpuprov starts on the controller use no name in /tmp that another user can take first."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from distributed.diskutils import WorkSpace

from gpuprov.errors import Refused
from gpuprov.ssh.workers import closed
from tests import ROOT

STRANGER = 65534
TAKEN = ("dask-scratch-space", "pytest-of-root")
"""Names that Dask and pytest use by default."""
PROGRAMS = """
import subprocess, sys, tempfile
from pathlib import Path
from gpuprov.ssh.workers.cluster import own_cluster
from gpuprov.verify.runner import _isolated

if __name__ == "__main__":
    with own_cluster(1) as connect, connect() as client:
        client.wait_for_workers(1, timeout=60)
    with tempfile.TemporaryDirectory() as name:
        Path(name, "test_it.py").write_text("def test_it(tmp_path): (tmp_path / 'x').touch()")
        options = ["no:none" if each == "gpuprov.verify.plugin" else each for each in _isolated(Path(name))]
        subprocess.run([sys.executable, "-P", "-m", "pytest", *options, name], check=True)
"""


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="takes names as another user, in a mount namespace")
def test_names_that_another_user_has_taken_are_not_used(tmp_path: Path) -> None:
    shared, victim = tmp_path / "tmp", tmp_path / "tmp/victim"
    shared.mkdir()
    shared.chmod(0o1777)
    victim.write_text("precious\n")
    for name in TAKEN:
        (shared / name).mkdir(mode=0o755)
        (shared / name / "global.lock").symlink_to("/tmp/victim")
        os.chown(shared / name, STRANGER, STRANGER)
    (shared / "run.py").write_text(PROGRAMS)
    (shared / "state").mkdir(mode=0o700)
    steps = [
        ["mount", "--bind", str(ROOT), "/mnt"],  # the checkout itself may be below /tmp
        ["mount", "--bind", str(shared), "/tmp"],
        ["exec", sys.executable.replace(str(ROOT), "/mnt"), "/tmp/run.py"],
    ]
    subprocess.run(
        ["unshare", "-m", "sh", "-c", " && ".join(map(shlex.join, steps))],
        env={**os.environ, "PYTHONPATH": "/mnt", "XDG_STATE_HOME": "/tmp/state", "TMPDIR": "/tmp"},
        cwd="/",
        check=True,
        timeout=300,
    )
    assert victim.read_text() == "precious\n"
    assert sorted(each.name for each in shared.iterdir()) == sorted([*TAKEN, "run.py", "state", "victim"])
    assert {each.name for name in TAKEN for each in (shared / name).iterdir()} == {"global.lock"}


def test_a_scratch_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(Refused, match=rf"^Dask's folder {tmp_path} is not safe: other users may write it"):
        WorkSpace(str(tmp_path / TAKEN[0]))
    assert not (tmp_path / TAKEN[0]).exists()


def test_a_scratch_folder_below_one_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "between").mkdir()
    tmp_path.chmod(0o777)
    with pytest.raises(Refused, match=rf"{TAKEN[0]} is not safe: other users may write {tmp_path}"):
        WorkSpace(str(tmp_path / "between" / TAKEN[0]))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_scratch_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / TAKEN[0]).mkdir()
    os.chown(tmp_path / TAKEN[0], STRANGER, STRANGER)
    with pytest.raises(Refused, match=rf"{TAKEN[0]} is not safe: it belongs to user {STRANGER}"):
        WorkSpace(str(tmp_path / TAKEN[0]))


def test_a_worker_that_loads_the_module_late_does_not_start(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    worker = SimpleNamespace(_workspace=SimpleNamespace(base_dir=str(tmp_path / TAKEN[0])))
    with pytest.raises(Refused, match="expected temporary-directory in Dask's configuration"):
        closed.ServerNode.start_http_server(worker, [], None)
