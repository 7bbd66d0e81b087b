"""Checks of the GPUs' settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.gpu_settings import CLOCKS_UNIT, MODES_UNIT, PERSISTENCE_UNIT
from gpuprov.verify.nodes import NodeUnderTest
from gpuprov.verify.readings import own_unit_state, stays_off

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

CLOCKS_JOURNAL = f"journalctl -u {CLOCKS_UNIT} -n 10 --no-pager"
MODES_JOURNAL = f"journalctl -u {MODES_UNIT} -n 10 --no-pager"
PERSISTENCE_JOURNAL = f"journalctl -u {PERSISTENCE_UNIT} -n 10 --no-pager"

SETTERS = "grep -rns nvidia-smi /etc/systemd/system /etc/crontab /etc/cron.* /etc/rc.local /var/spool/cron"
"""Search for other programs that configure GPUs, at times or at boot."""


@pytest.mark.check("gpu.persistence_unit", PERSISTENCE_JOURNAL)
def test_persistence_daemon_is_as_wanted(host: Node, expected: str) -> None:
    """Check the state of the unit that sets persistence mode."""
    assert stays_off(own_unit_state(host, PERSISTENCE_UNIT), expected) == expected


@pytest.mark.check("gpu.persistence", PERSISTENCE_JOURNAL, SETTERS)
def test_persistence_mode_reads_back(host: Node, group: LockedGroup, expected: bool) -> None:
    """Check that every GPU of the lock has the expected persistence mode."""
    assert host.gpu.persistence == on_every_gpu(expected, group)


@pytest.mark.check("gpu.clocks_unit", CLOCKS_JOURNAL)
def test_clocks_unit_is_as_wanted(host: Node, node: NodeUnderTest, expected: str) -> None:
    """Check the state of the unit that sets clocks at boot."""
    command = node.wanted["gpu.clocks_unit"].subject
    assert own_unit_state(host, CLOCKS_UNIT, command) == expected


@pytest.mark.check("gpu.clocks", CLOCKS_JOURNAL, SETTERS)
def test_clocks_read_back(host: Node, group: LockedGroup, expected: dict[str, int]) -> None:
    """Check that every GPU of the lock has the expected clocks in MHz."""
    # Locked clocks fix only the graphics clock on many GPUs: an unknown memory clock is not compared.
    seen = {gpu: {**expected, **clocks} for gpu, clocks in host.gpu.clocks.items()}
    assert seen == on_every_gpu(expected, group)


@pytest.mark.check("gpu.modes_unit", MODES_JOURNAL)
def test_modes_unit_is_as_wanted(host: Node, node: NodeUnderTest, expected: str) -> None:
    """Check the state of the unit that sets power limit and modes at boot."""
    command = node.wanted["gpu.modes_unit"].subject
    assert own_unit_state(host, MODES_UNIT, command) == expected


@pytest.mark.check("gpu.power_range", "nvidia-smi -q -d POWER")
def test_every_gpu_allows_the_power_limit(host: Node, expected: int) -> None:
    """Check that the expected power limit is in the range of every GPU; an unknown range is not compared."""
    ranges = host.gpu.power_range
    outside = {
        gpu: f"{least:g} to {most:g}"
        for gpu, (least, most) in (ranges or {}).items()
        if not least <= expected <= most
    }
    assert ("nvidia-smi fails" if ranges is None else outside) == {}


@pytest.mark.check("gpu.power_limit", MODES_JOURNAL, SETTERS)
def test_power_limit_reads_back(host: Node, group: LockedGroup, expected: int) -> None:
    """Check that every GPU of the lock has the expected power limit in watts."""
    assert mode(host, "power_limit", expected) == on_every_gpu(expected, group)


@pytest.mark.check("gpu.compute_mode", MODES_JOURNAL, SETTERS)
def test_compute_mode_reads_back(host: Node, group: LockedGroup, expected: str) -> None:
    """Check that every GPU of the lock has the expected compute mode."""
    assert mode(host, "compute_mode", expected) == on_every_gpu(expected, group)


@pytest.mark.check("gpu.ecc_pending", MODES_JOURNAL)
def test_pending_ecc_mode(host: Node, group: LockedGroup, expected: bool) -> None:
    """Check that the pending ECC mode of every GPU, in effect after a reset, is the expected one."""
    assert mode(host, "ecc_pending", expected) == on_every_gpu(expected, group)


@pytest.mark.check("gpu.ecc", "nvidia-smi -q -d ECC")
def test_ecc_is_as_wanted(host: Node, group: LockedGroup, expected: bool) -> None:
    """Check that the current ECC mode of every GPU is the expected one."""
    assert mode(host, "ecc", expected) == on_every_gpu(expected, group)


@pytest.mark.check("gpu.mig_pending", MODES_JOURNAL)
def test_pending_mig_mode(host: Node, group: LockedGroup, expected: bool) -> None:
    """Check that the pending MIG mode of every GPU, in effect after a reset, is the expected one."""
    assert mode(host, "mig_pending", expected) == on_every_gpu(expected, group)


@pytest.mark.check("gpu.mig", MODES_JOURNAL)
def test_mig_is_as_wanted(host: Node, group: LockedGroup, expected: bool) -> None:
    """Check that the current MIG mode of every GPU is the expected one."""
    assert mode(host, "mig", expected) == on_every_gpu(expected, group)


@pytest.mark.check("gpu.mig_layout", MODES_JOURNAL, "nvidia-smi mig -lgi")
def test_instances_are_as_wanted(host: Node, group: LockedGroup, expected: list[str]) -> None:
    """Check that every GPU has the expected profiles of GPU instances; one without MIG is not compared."""
    without = [gpu for gpu, modes in host.gpu.modes.items() if modes.mig is None]
    seen = {gpu: host.gpu.instances.get(gpu, expected if gpu in without else []) for gpu in host.gpu.modes}
    assert seen == on_every_gpu(expected, group)


def mode(host: Node, name: str, expected: Any) -> dict[str, Any]:
    """Return one mode, a field of `Modes`, by GPU.

    A GPU without the mode has the expected value, so that it passes.
    """
    result = {gpu: getattr(modes, name) for gpu, modes in host.gpu.modes.items()}
    return {gpu: expected if value is None else value for gpu, value in result.items()}


def on_every_gpu(value: Any, group: LockedGroup) -> dict[str, Any]:
    """Return `GPU N` → the value, for each of the number of GPUs in the lock."""
    return {f"GPU {number}": value for number in range(group.hardware.gpu_count)}
