"""Reset on a node: jobs prevent it; units that hold a GPU stop and start, also after an interruption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuprov.probe.node.base import Failed
from gpuprov.upgrade.node import gpus
from gpuprov.upgrade.repair.holders import HOLDERS, JOINING, SETTINGS

PERSISTENCED, CLOCKS = "nvidia-persistenced.service", "gpuprov-gpu-clocks.service"
GPU = "00000000:CA:00.0"


class Machine:
    """A node's processes on GPUs, units, and nvidia-smi.

    Attributes:
        processes: pid → name and unit.
        active: active units.
        calls: commands that change something, in order.
        resets: exit code and output of nvidia-smi.
        starts_at_stop: process that appears when the units have stopped.
    """

    def __init__(self) -> None:
        self.processes = {"10": ("nvidia-persiste", PERSISTENCED), "11": ("nv-fabricmanage", JOINING[0])}
        self.active = {PERSISTENCED, CLOCKS, JOINING[0]}
        self.calls: list[str] = []
        self.resets = (0, "All done.\n")
        self.starts_at_stop: tuple[str, tuple[str, str]] | None = None
        self.broken: set[str] = set()

    def gpu_use(self, parameters: object) -> object:
        """Return the processes that use a GPU, and no containers."""
        return {"processes": {pid: name for pid, (name, _) in self.processes.items()}, "containers": []}

    def run(self, *words: str, seconds: float = 0) -> str:
        """Record a command; a stop of units ends them and their processes. Return ""."""
        self.calls.append(" ".join(words))
        for unit in words[2:]:
            self.active.discard(unit)
            self.processes = {pid: each for pid, each in self.processes.items() if each[1] != unit}
        if PERSISTENCED in words:
            self.active.discard(CLOCKS)  # PartOf=
        if self.starts_at_stop:
            self.processes[self.starts_at_stop[0]] = self.starts_at_stop[1]
        return ""

    def run_anyway(self, *words: str, seconds: float = 0) -> tuple[int, str, str]:
        """Record a command, and return its exit code and output: a reset's, or a unit's start."""
        if words[:2] == ("systemctl", "is-active"):
            return (0 if words[-1] in self.active else 3, "", "")
        self.calls.append(" ".join(words))
        if words[0] == "nvidia-smi":
            return (self.resets[0], self.resets[1], "")
        if words[-1] in self.broken:
            return (1, "", "failed")
        self.active.add(words[-1])
        return (0, "", "")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Return a fake machine with one GPU, on which the program runs."""
    machine = Machine()
    for name in ("gpu_use", "run", "run_anyway"):
        monkeypatch.setattr(gpus, name, getattr(machine, name))
    monkeypatch.setattr(gpus, "devices_of", lambda pid: {"nvidia0"})
    monkeypatch.setattr(gpus, "_unit_of", lambda pid: machine.processes[pid][1])
    monkeypatch.setattr(gpus, "RUN", str(tmp_path))
    monkeypatch.setattr(gpus, "STOPPED", str(tmp_path / "stopped.json"))
    return machine


def reset() -> None:
    """Reset the GPU with the units of the real lists."""
    gpus.reset([GPU], list(HOLDERS), list(JOINING), list(SETTINGS), 300.0, 90.0)


def test_what_holds_a_gpu_stops_and_starts_again_with_its_settings(machine: Machine, tmp_path: Path) -> None:
    reset()
    assert machine.calls == [
        f"systemctl stop {PERSISTENCED}",
        f"nvidia-smi --gpu-reset -i {GPU}",
        f"systemctl restart {PERSISTENCED}",
        f"systemctl restart {CLOCKS}",
    ]
    assert {PERSISTENCED, CLOCKS, JOINING[0]} == machine.active
    assert not (tmp_path / "stopped.json").exists()


def test_a_job_prevents_the_reset_and_nothing_stops(machine: Machine) -> None:
    machine.processes["77"] = ("python", "slurmstepd.scope")
    with pytest.raises(Failed, match=r"^the GPUs are in use by python \(77\)$"):
        reset()
    assert machine.calls == []


def test_a_program_with_the_name_of_a_daemon_is_a_job(machine: Machine) -> None:
    machine.processes["77"] = ("nv-hostengine", "slurmd.service")
    with pytest.raises(Failed, match=r"in use by nv-hostengine \(77\)"):
        reset()
    assert machine.calls == []


def test_a_job_that_starts_while_units_stop_prevents_the_reset(machine: Machine) -> None:
    machine.starts_at_stop = ("78", ("python", "user@1000.service"))
    with pytest.raises(Failed, match=r"in use by python \(78\)"):
        reset()
    assert not any("gpu-reset" in call for call in machine.calls)
    assert PERSISTENCED in machine.active


def test_units_start_again_if_nvidia_smi_refuses(machine: Machine) -> None:
    machine.resets = (255, "The following GPUs could not be reset:\n  GPU 0: In use by another client\n")
    with pytest.raises(
        Failed, match=r"exited with 255: The following GPUs could not be reset:; GPU 0: In use"
    ):
        reset()
    assert {PERSISTENCED, CLOCKS} <= machine.active


def test_units_of_an_interrupted_reset_start_at_the_next(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "stopped.json").write_text(json.dumps([CLOCKS, PERSISTENCED]))
    machine.active, machine.processes = {JOINING[0]}, {}
    reset()
    assert {PERSISTENCED, CLOCKS} <= machine.active


def test_a_unit_that_does_not_start_is_reported_and_remembered(machine: Machine, tmp_path: Path) -> None:
    machine.broken = {PERSISTENCED}
    with pytest.raises(Failed, match=f"after the reset {PERSISTENCED} did not start"):
        reset()
    assert PERSISTENCED in json.loads((tmp_path / "stopped.json").read_text())


def test_jobs_boot_and_clock(machine: Machine) -> None:
    machine.processes["77"] = ("python", "session-2.scope")
    answer = gpus.use(list(HOLDERS), list(JOINING))
    assert answer["jobs"] == ["python (77)"]
    assert len(answer["boot"]) == 36
    assert answer["at"] > 1.7e9


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/nvidia-persistenced.service\n", PERSISTENCED),
        ("9:name=systemd:/system.slice/nvidia-persistenced.service\n8:pids:/\n", PERSISTENCED),
        ("0::/system.slice/slurmd.service/job_7/step_0\n", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/nvidia-persistenced.service\n", None),
        ("0::/system.slice/docker-0a1b.scope\n", None),
        ("0::/kubepods.slice/system.slice/nvidia-persistenced.service\n", None),
        ("", None),
    ],
)
def test_only_a_process_directly_in_a_system_service_belongs_to_it(
    monkeypatch: pytest.MonkeyPatch, text: str, unit: str | None
) -> None:
    monkeypatch.setattr(gpus, "read_or_none", lambda path: text)
    assert gpus._unit_of("7") == unit
