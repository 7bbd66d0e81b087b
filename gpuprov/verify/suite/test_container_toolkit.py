"""Checks of NVIDIA's toolkit: replaced packages removed, CDI specification kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.roles.container_toolkit import CDI_UNIT, FORERUNNERS
from gpuprov.verify.readings import stays_off, unit_state

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


@pytest.mark.check("container_toolkit.forerunners")
def test_toolkits_forerunners_are_gone(host: Node, expected: list[str]) -> None:
    """Check that no package that the toolkit replaced is installed."""
    assert [name for name in FORERUNNERS if name in host.apt.versions] == expected


@pytest.mark.check("container_toolkit.cdi", f"systemctl status {CDI_UNIT}", "nvidia-ctk cdi list")
def test_cdi_specification_is_kept_up_to_date(host: Node, expected: str) -> None:
    """Check that the unit that refreshes the CDI specification is enabled and active."""
    assert stays_off(unit_state(host, CDI_UNIT), expected) == expected
