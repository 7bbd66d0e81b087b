"""Processes that a dead controller left: only those of the operator's own user count."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gpuprov.apply.attempts import ansible_at_work

NOBODY = 65534


def at_work(folder: Path, user: int, program: str = "/bin/sleep") -> list[int]:
    """Return the processes that are found while a user has one that looks like Ansible's in a folder."""
    process = subprocess.Popen(
        ["ansible-playbook", "60"],
        executable=program,
        env={"GPUPROV_EVENTS": f"{folder}/site-events.jsonl"},
        user=user,
        extra_groups=[],
    )
    try:
        for _ in range(50):  # until the process has its own environment
            if found := ansible_at_work(folder):
                assert found == [process.pid]
                return found
            time.sleep(0.01)
        return []
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_another_user_cannot_have_root_wait_for_a_process(tmp_path: Path) -> None:
    assert at_work(tmp_path, os.geteuid())
    assert not at_work(tmp_path, NOBODY)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_nor_for_one_of_a_program_with_the_rights_of_root(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    program = shutil.copy("/bin/sleep", tmp_path / "su")
    assert at_work(tmp_path, os.geteuid(), str(program))
    Path(program).chmod(0o4755)
    reachable = all(folder.stat().st_mode & 0o001 for folder in Path(program).parents)
    assert not at_work(tmp_path, NOBODY if reachable else os.geteuid(), str(program))
