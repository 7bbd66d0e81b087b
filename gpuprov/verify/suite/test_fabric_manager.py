"""Checks of the fabric manager: its unit, and the fabric state of every GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.roles.fabric_manager import FABRIC_UNIT
from gpuprov.verify.nodes import NodeUnderTest
from gpuprov.verify.readings import unit_state

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

FABRIC = "nvidia-smi --query-gpu=fabric.state --format=csv,noheader"
"""Query of the fabric state of every GPU."""


@pytest.mark.check("fabric_manager.unit", f"journalctl -u {FABRIC_UNIT} -n 10 --no-pager")
def test_fabric_manager_starts_at_every_boot(host: Node, node: NodeUnderTest, expected: str) -> None:
    """Check that the fabric manager's unit is enabled, and active if the loaded driver has its version.

    With another driver version loaded, as before a reboot, the fabric manager cannot run.
    """
    state, loaded = unit_state(host, FABRIC_UNIT), host.nvidia_driver.loaded
    own = loaded is not None and loaded.version == node.wanted["fabric_manager.unit"].subject
    assert (state if own else state.partition(", but")[0]) == expected


@pytest.mark.check("fabric_manager.fabric", FABRIC, f"journalctl -u {FABRIC_UNIT} -n 10 --no-pager")
def test_every_gpu_has_joined_the_fabric(host: Node, expected: str) -> None:
    """Check that the fabric state of every GPU is the expected one; without any GPU the check fails."""
    assert set(host.run(FABRIC).stdout.splitlines()) == {expected}
