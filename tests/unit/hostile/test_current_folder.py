"""Commands start no module of the folder that they are called in, which may be another user's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprov.model.lock import write_lock
from tests import ROOT
from tests.unit.programs import write_program
from tests.unit.verify.nodes_on_paper import lock_of

FURTHER = ("torch", "jax", "yaml", "ansible", "paramiko", "distributed", "pip", "conftest", "testinfra")
NVIDIA_SMI = 'case $1 in -L) echo "GPU 0: A"; echo "GPU 1: B" ;; *) echo "5, 16" ;; esac'
LOCK = ("--lock", "../fleet.lock.yml")


TYPED = ("*.md", "docs/**/*.md", "scripts/*", "templates/**/*", "examples/**/*", "*.yml")
"""Files with lines that a person types or a job runs."""


def test_no_line_to_type_starts_a_module_of_the_current_folder() -> None:
    """Find `-m` of the system's Python without `-I` or `-P`: it reads the current folder first."""
    wrong = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for pattern in TYPED
        for path in sorted(ROOT.glob(pattern))
        if path.is_file()
        for line in path.read_text("utf-8", "replace").splitlines()
        if re.search(r"(?<![/\w])python3? (?!.*-[IP]).*-m\b", line)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "words",
    [
        ("nccl", "check", "--local"),
        ("doctor", "--local"),
        ("facts", "--local"),
        ("status", "--local"),
        ("verify", "--local", *LOCK, "n1"),
        ("drift", "--workers", "local:1", *LOCK),
        ("inventory", "import", "--from", "ansible", "../hosts.ini"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.thorough
def test_no_module_of_the_current_folder_starts(words: tuple[str, ...], tmp_path: Path) -> None:
    here, started = tmp_path / "here", tmp_path / "started"
    here.mkdir()
    (tmp_path / "bin").mkdir()
    for name in {*sys.stdlib_module_names, *FURTHER} - {"sys", "builtins"}:
        (here / f"{name}.py").write_text(f"open({str(started)!r}, 'a').write(__name__ + ' ')\n")
    write_program(tmp_path / "bin/nvidia-smi", NVIDIA_SMI)
    write_lock(lock_of("n1"), tmp_path / "fleet.lock.yml")
    (tmp_path / "hosts.ini").write_text("[train]\nn1\n")
    own = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
    }
    program = Path(sys.executable).with_name("gpuprov")
    subprocess.run(
        [program, *words], cwd=here, env=os.environ | own, capture_output=True, timeout=120, check=False
    )
    assert not started.exists(), started.read_text()
