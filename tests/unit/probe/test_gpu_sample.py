"""Readings of GPUs from NVML, of which some values are read once and others in each reading."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.probe.node.gpu_sample import PROCESSES_AT_MOST, TOO_SHORT, Nvml


def reporting(*values: int) -> Any:
    """Return a function of NVML that reports these values, one at each call."""
    left = iter(values)

    def function(*arguments: Any) -> int:
        arguments[-1]._obj.value = next(left)
        return 0

    return function


def test_the_pcie_link_is_read_each_time_as_an_idle_one_slows_down(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(
        nvmlInit_v2=lambda: 0,
        nvmlDeviceGetCount_v2=reporting(1),
        nvmlDeviceGetHandleByIndex_v2=lambda *_: 0,
        nvmlDeviceGetCurrPcieLinkGeneration=reporting(1, 5),
        nvmlDeviceGetEnforcedPowerLimit=reporting(700_000),
        nvmlDeviceGetUtilizationRates=lambda *_: 3,
        nvmlDeviceGetMemoryInfo=lambda *_: 3,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda *_: 3,
        nvmlDeviceGetTotalEccErrors=lambda *_: 3,
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    nvml = Nvml()
    [[first], [second]] = nvml.read(), nvml.read()
    assert (first["generation"], second["generation"]) == (1, 5)
    assert first["limit_w"] == second["limit_w"] == 700.0


def listing(number: int) -> Any:
    """Return a function of NVML that lists this many processes, unless the list is too short."""

    def function(handle: Any, count: Any, rows: Any) -> int:
        room, count._obj.value = count._obj.value, number
        if room < number:
            return TOO_SHORT
        for pid in range(number):
            rows[pid].pid, rows[pid].used = pid, 900 << 20
        return 0

    return function


@pytest.mark.parametrize("version", ["_v3", "_v2"])
@pytest.mark.parametrize("number", [0, 1, 64, 65, 1000])
def test_all_processes_of_a_gpu_are_listed(
    version: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert processes(monkeypatch, version, listing(number)) == {0: [[pid, 900] for pid in range(number)]}


@pytest.mark.parametrize("asked", [None, lambda *_: 3, lambda *_: 999, listing(PROCESSES_AT_MOST + 1)])
def test_a_gpu_whose_processes_are_not_known_is_not_one_without(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert processes(monkeypatch, "_v3", asked) == {}


def processes(monkeypatch: pytest.MonkeyPatch, version: str, asked: Any) -> dict[int, list[list[int]]]:
    """Return the processes of a node with one GPU, where NVML has this version of the function, or none."""
    library = SimpleNamespace(
        nvmlInit_v2=lambda: 0,
        nvmlDeviceGetCount_v2=reporting(1),
        nvmlDeviceGetHandleByIndex_v2=lambda *_: 0,
    )
    if asked is not None:
        setattr(library, "nvmlDeviceGetComputeRunningProcesses" + version, asked)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    return Nvml().processes()
