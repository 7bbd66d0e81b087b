"""Hardware of a profile as the lock records it, compared with what nodes report."""

from __future__ import annotations

import json

import pytest

from gpuprov.catalog import load
from gpuprov.errors import Refused
from gpuprov.locking.hardware import locked_hardware
from gpuprov.model.hardware import GpuHardware, HardwareProfile
from gpuprov.probe.facts import Facts
from tests import H200


def test_memory_is_what_a_kernel_reports_of_it() -> None:
    """Accept the recorded 503.8 GiB for 512 GiB, but not the same with 31 of 32 DIMMs."""
    reported = Facts.from_answer(json.loads((H200 / "facts.json").read_text())).memory.total_mib
    stated = HardwareProfile(gpu=GpuHardware(model="h200-sxm", count=4), memory_gib=512)
    least = locked_hardware(load(), "h200x4", stated).memory_mib
    assert least is not None
    assert reported * 31 / 32 < least <= reported


def test_a_profile_without_gpus_is_refused() -> None:
    for gpu in (GpuHardware(model="h200-sxm"), GpuHardware(count=8)):
        with pytest.raises(Refused, match="profile 'x' does not say which GPUs"):
            locked_hardware(load(), "x", HardwareProfile(gpu=gpu))
