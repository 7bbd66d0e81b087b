"""A node before a load test: schedulers, which are programs of root and not those to which users give their
names, and programs on GPUs.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from gpuprov.accept.node import watch

ROOT, USER, SETUID = "0\t0\t0\t0", "1000\t1000\t1000\t1000", "1000\t0\t0\t0"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the program's /proc, with a folder `self`."""
    monkeypatch.setattr(watch, "PROC", str(tmp_path))
    (tmp_path / "self").mkdir()
    return tmp_path


def runs(proc: Path, name: str, uids: str = ROOT, file: str = "") -> None:
    """Add a process with a name, its users' numbers and the file that it runs to a /proc."""
    folder = proc / str(len(list(proc.iterdir())))
    folder.mkdir()
    (folder / "comm").write_text(f"{name}\n")
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uids}\nGid:\t0\t0\t0\t0\n")
    (folder / "exe").symlink_to(file or f"/usr/sbin/{name}")


@pytest.mark.parametrize("file", ["/usr/sbin/slurmd", "/opt/slurm/sbin/slurmd (deleted)"])
def test_a_scheduler_is_found(proc: Path, file: str) -> None:
    runs(proc, "slurmd", file=file)
    runs(proc, "kubelet")
    runs(proc, "kubelet")
    runs(proc, "bash")
    assert watch.schedulers() == ["Kubernetes", "Slurm"]


@pytest.mark.parametrize(
    ("uids", "file"), [(USER, ""), (SETUID, "/usr/bin/sudo"), (SETUID, ""), (ROOT, "/usr/bin/sudo")]
)
def test_a_name_that_a_user_chose_is_no_scheduler(proc: Path, uids: str, file: str) -> None:
    runs(proc, "slurmd", uids, file)
    assert watch.schedulers() == []


def test_a_process_that_has_ended_is_none(proc: Path) -> None:
    (proc / "7").mkdir()
    assert watch.schedulers() == []


def test_programs_that_nvml_does_not_list_are_not_none(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Mock()
    nvml.read.return_value = [{"index": index} for index in range(3)]
    nvml.processes.return_value = {0: [], 1: [[4711, 900]]}
    monkeypatch.setattr(watch, "Watch", lambda: nvml)
    assert watch.first_look()["programs"] == {"1": [[4711, 900]], "2": None}
