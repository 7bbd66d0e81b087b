"""The GPUs: on the bus, in the driver, and set as the lock says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuprov.expectations import CLOCKS_UNIT, PERSISTENCE_UNIT
from gpuprov.lock import LockedGroup
from gpuprov.verify.readings import unit_state

if TYPE_CHECKING:
    from gpuprov.verify.modules import Node

CLOCKS_JOURNAL = f"journalctl -u {CLOCKS_UNIT} -n 10 --no-pager"
PERSISTENCE_JOURNAL = f"journalctl -u {PERSISTENCE_UNIT} -n 10 --no-pager"


@pytest.mark.check("gpu.model")
def test_gpus_are_of_the_model(host: Node, group: LockedGroup) -> None:
    assert {gpu.id for gpu in host.gpu.on_bus} <= set(group.hardware.gpu_pci_ids)


@pytest.mark.check("gpu.count", "nvidia-smi -L")
def test_bus_has_every_gpu(host: Node, expected: int) -> None:
    assert len(host.gpu.on_bus) == expected


@pytest.mark.check("gpu.visible", "nvidia-smi -L", "dmesg | grep -iE 'nvrm|xid'")
def test_driver_has_every_gpu_of_the_bus(host: Node, expected: int) -> None:
    assert host.gpu.count == expected
    assert sorted(gpu.address for gpu in host.gpu.in_driver) == [gpu.address for gpu in host.gpu.on_bus]


@pytest.mark.check("gpu.persistence_unit", PERSISTENCE_JOURNAL)
def test_persistence_daemon_is_as_wanted(host: Node, expected: str) -> None:
    assert unit_state(host, PERSISTENCE_UNIT) == expected


@pytest.mark.check("gpu.persistence", PERSISTENCE_JOURNAL)
def test_persistence_mode_reads_back(host: Node, group: LockedGroup, expected: bool) -> None:
    assert host.gpu.persistence == on_every_gpu(expected, group)


@pytest.mark.check("gpu.clocks_unit", CLOCKS_JOURNAL)
def test_clocks_unit_is_as_wanted(host: Node, expected: str) -> None:
    assert unit_state(host, CLOCKS_UNIT) == expected


@pytest.mark.check("gpu.clocks", CLOCKS_JOURNAL, "nvidia-smi -q -d CLOCK")
def test_clocks_read_back(host: Node, group: LockedGroup, expected: dict[str, int]) -> None:
    # Locked clocks fix the graphics clock alone on many GPUs: a memory clock that is not told is not judged.
    seen = {gpu: {**expected, **clocks} for gpu, clocks in host.gpu.clocks.items()}
    assert seen == on_every_gpu(expected, group)


def on_every_gpu(value: Any, group: LockedGroup) -> dict[str, Any]:
    """The same for each GPU that the lock counts."""
    return {f"GPU {number}": value for number in range(group.hardware.gpu_count)}
