"""Commands start no module of the folder that they are called in, which may be another user's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprov.model.lock import write_lock
from gpuprov.ssh.workers.certificates import make_certificates
from tests import ROOT
from tests.unit.programs import write_program
from tests.unit.verify.nodes_on_paper import lock_of

FURTHER = ("torch", "jax", "yaml", "ansible", "paramiko", "distributed", "pip", "conftest", "testinfra")
NVIDIA_SMI = 'case $1 in -L) echo "GPU 0: A"; echo "GPU 1: B" ;; *) echo "5, 16" ;; esac'
LOCK = ("--lock", "../fleet.lock.yml")
PROGRAM = Path(sys.executable).with_name("gpuprov")


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


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder with a module of each name that a program may import, which notes its start in
    `started`.
    """
    folder = tmp_path / "here"
    folder.mkdir()
    for name in {*sys.stdlib_module_names, *FURTHER} - {"sys", "builtins"}:
        text = f"open({str(tmp_path / 'started')!r}, 'a').write(__name__ + ' ')\n"
        (folder / f"{name}.py").write_text(text)
    return folder


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
def test_no_module_of_the_current_folder_starts(words: tuple[str, ...], here: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    (tmp_path / "bin").mkdir()
    write_program(tmp_path / "bin/nvidia-smi", NVIDIA_SMI)
    write_lock(lock_of("n1"), tmp_path / "fleet.lock.yml")
    (tmp_path / "hosts.ini").write_text("[train]\nn1\n")
    own = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
    }
    subprocess.run(
        [PROGRAM, *words], cwd=here, env=os.environ | own, capture_output=True, timeout=120, check=False
    )
    assert not started.exists(), started.read_text()


def test_workers_of_a_site_start_no_module_of_the_current_folder(here: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path, ["east"])
    words = ["--certificates", str(tmp_path / "site-east"), "--listen", "127.0.0.1:0", "--processes", "1"]
    own = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(
        [PROGRAM, "workers", "serve", *words],
        cwd=here,
        env=os.environ | own,
        stderr=subprocess.PIPE,
        text=True,
    ) as service:
        assert service.stderr is not None
        said = service.stderr.readline()
        service.terminate()
    assert "127.0.0.1" in said, said
    assert not (tmp_path / "started").exists(), (tmp_path / "started").read_text()
