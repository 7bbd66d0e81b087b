"""Scripts that the roles install on a node, run on this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.programs import write_program
from tests.unit.roles.scripts import ROLES

RunScript = Callable[..., tuple[subprocess.CompletedProcess[str], list[str]]]


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Function run_script(path, cases, *arguments) that runs a role's script with a fake nvidia-smi.

    `cases` are the branches of the fake's shell `case`. The function returns the finished process and the
    arguments of each call of nvidia-smi.
    """

    def run(path: str, cases: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """Run the script; return the process, and the calls of nvidia-smi."""
        smi = f'echo "$*" >>{tmp_path}/calls\ncase "$*" in\n{cases}\n*--query-gpu=index*) echo 0 ;;\nesac'
        write_program(tmp_path / "nvidia-smi", smi)
        script = tmp_path / "script"
        script.write_text((ROLES / path).read_text().replace("/run/gpuprov", str(tmp_path / "run")))
        done = subprocess.run(
            ["sh", script, *arguments], capture_output=True, text=True, check=False, timeout=20,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        )  # fmt: skip
        return done, (tmp_path / "calls").read_text().splitlines()

    return run
