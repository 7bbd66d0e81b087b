"""Readings of GPUs from NVML, of which some values are read once and others in each reading."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.probe.node.gpu_sample import Nvml


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
