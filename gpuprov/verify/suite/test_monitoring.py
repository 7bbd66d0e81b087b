"""Checks of the exporters, and of the textfile with the expectations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.roles.monitoring import DCGM_UNIT, EXPORTER_UNIT
from gpuprov.verify.nodes import NodeUnderTest
from gpuprov.verify.observers.user_files import checksum_of
from gpuprov.verify.readings import unit_state

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


@pytest.mark.check("monitoring.exporter", f"journalctl -u {EXPORTER_UNIT} -n 10 --no-pager")
def test_exporter_runs_now_and_at_every_boot(host: Node, expected: str) -> None:
    """Check that the exporter's unit is enabled and active."""
    assert unit_state(host, EXPORTER_UNIT) == expected


@pytest.mark.check("monitoring.dcgm", f"journalctl -u {DCGM_UNIT} -n 10 --no-pager", "dcgmi discovery -l")
def test_dcgm_runs_now_and_at_every_boot(host: Node, expected: str) -> None:
    """Check that DCGM's unit is enabled and active."""
    assert unit_state(host, DCGM_UNIT) == expected


@pytest.mark.check("monitoring.textfile")
def test_prometheus_has_the_expected_settings(node: NodeUnderTest, expected: str) -> None:
    """Check the SHA-256 of the textfile with the expectations, which node_exporter reads."""
    path = str(node.wanted["monitoring.textfile"].subject)
    assert checksum_of(node.host, path) == expected
