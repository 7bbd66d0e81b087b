"""Programs that use a GPU, as the probe finds them: those that the probe runs itself are not among them."""

from __future__ import annotations

import os
import subprocess

import pytest

from gpuprov.probe.node import host

PARAMETERS = {"environment": "NCCL_"}


def test_what_the_probe_runs_itself_does_not_use_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out children, as nvidia-smi that another collector runs, which has all GPUs open."""
    monkeypatch.setattr(host, "devices_of", lambda pid: ["nvidia0", "nvidiactl"])
    with subprocess.Popen(["sleep", "60"]) as child:
        running = [str(os.getppid()), str(child.pid), str(os.getpid())]
        monkeypatch.setattr(host, "names_in", lambda folder: running)
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
