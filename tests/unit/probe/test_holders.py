"""Programs that use a GPU, as the probe finds them: those that the probe runs itself are not among them."""

from __future__ import annotations

import os
import subprocess

import pytest

from gpuprov.probe.node import host

PARAMETERS = {"environment": "NCCL_"}


def test_what_the_probe_runs_itself_does_not_use_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out children, as nvidia-smi that another collector runs, which has all GPUs open."""
    with subprocess.Popen(["sleep", "60"]) as child:
        running = {str(os.getppid()): ["nvidia0"], str(child.pid): ["nvidia0"]}
        monkeypatch.setattr(host, "users_of", lambda pattern: running)
        found = [row["pid"] for row in host.programs(PARAMETERS)["holders"]]
        child.kill()
    assert found == [os.getppid()]


def test_what_the_probe_runs_itself_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out sleeping children: nvidia-smi reads many GPUs for longer than half a second."""
    texts = {
        "/proc/11/stat": f"11 (nvidia-smi) D {os.getpid()} 1 1",
        "/proc/12/stat": "12 (a (strange) D name) D 1 1 1",
        "/proc/13/stat": "13 (sleep) S 1 1 1",
        "/proc/14/stat": "",
    }
    monkeypatch.setattr(host.glob, "glob", lambda pattern: list(texts))
    monkeypatch.setattr(host, "read_or_none", lambda path, limit=0: texts.get(path))
    monkeypatch.setattr(host, "text_in", lambda path: "io_schedule")
    assert host._stuck() == [["a (strange) D name", "12", "io_schedule"]]


def test_many_programs_and_variables_of_a_user_hide_no_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as many as there are places, each user's in turn, and of each a bounded part of its variables."""
    texts = {f"/proc/{pid}/status": f"Uid:\t{1000 if pid < 900 else 1001}\n" for pid in range(1, 1001)}
    texts |= {f"/proc/{pid}/environ": "NCCL_X=1\0" * 9 for pid in range(1, 1001)}
    variables = "".join(f"NCCL_{number}=1\0" for number in range(16000))
    texts["/proc/1/environ"] = variables

    def read(path: str, limit: int = 1 << 22) -> str | None:
        """Return a file's text; record reads of environments."""
        if path.endswith("/environ"):
            opened.append(path)
        return texts.get(path, "")[:limit]

    opened: list[str] = []
    monkeypatch.setattr(host, "users_of", lambda pattern: {str(pid): ["nvidia0"] for pid in range(1, 1001)})
    monkeypatch.setattr(host, "read_or_none", read)
    monkeypatch.setattr(host, "text_in", lambda path: "")
    monkeypatch.setattr(host, "names_in", lambda folder: [])
    monkeypatch.setattr(host, "_stuck", list)
    holders = host.programs(PARAMETERS)["holders"]
    assert [row["uid"] for row in holders] == ["1000", "1001"] * (host.PROCESSES_AT_MOST // 2)
    assert len(opened) == host.PROCESSES_AT_MOST
    assert len(holders[0]["variables"]) == host.VARIABLES_AT_MOST
