"""Checks of NVIDIA's toolkit: replaced packages removed, CDI specification kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.roles.container_toolkit import (
    CDI_SERVICE,
    CDI_UNIT,
    CONFIG,
    FORERUNNERS,
    not_as_shipped,
    refresh_state,
)
from gpuprov.verify.nodes import NodeUnderTest
from gpuprov.verify.observers.containers import DEFAULTS
from gpuprov.verify.readings import boot_state, stays_off, unit_state

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


@pytest.mark.check("container_toolkit.forerunners")
def test_toolkits_forerunners_are_gone(host: Node, expected: list[str]) -> None:
    """Check that no package that the toolkit replaced is installed."""
    assert [name for name in FORERUNNERS if name in host.packages.versions] == expected


@pytest.mark.check(
    "container_toolkit.cdi",
    f"systemctl status {CDI_UNIT}",
    f"systemctl status {CDI_SERVICE}",
    "nvidia-ctk cdi list",
)
def test_cdi_specification_is_kept_up_to_date(host: Node, expected: str) -> None:
    """Check that the path unit that refreshes the CDI specification is enabled and active, and that its
    service starts at boot.
    """
    state = stays_off(unit_state(host, CDI_UNIT), expected)
    assert refresh_state(state, boot_state(host, CDI_SERVICE)) == expected


@pytest.mark.check("container_toolkit.config", f"cat {CONFIG}", DEFAULTS)
def test_toolkit_is_configured_as_shipped(host: Node, expected: list[str]) -> None:
    """Check that each key of config.toml is as the packages ship it or as the toolkit has it by default."""
    assert not_as_shipped(*host.containers.toolkit) == expected


@pytest.mark.check("container_toolkit.specifications", "ls -l /etc/cdi /var/run/cdi", "nvidia-ctk cdi list")
def test_specifications_fit_the_driver(host: Node, node: NodeUnderTest, expected: list[str]) -> None:
    """Check the paths and versions in CDI specifications; not before the reboot into the locked driver."""
    driver, loaded = str(node.wanted["container_toolkit.specifications"].subject), host.nvidia_driver.loaded
    settled = loaded is not None and loaded.version == driver  # a reboot writes them again
    assert (host.containers.unfit_specifications(driver) if settled else []) == expected


@pytest.mark.check("container_toolkit.devices", "ls -l /etc/cdi /var/run/cdi", "nvidia-ctk cdi list")
def test_a_container_can_ask_for_every_gpu(host: Node, node: NodeUnderTest, expected: int) -> None:
    """Check the GPUs among the toolkit's CDI devices; not before the reboot into the locked driver."""
    driver, loaded = node.wanted["container_toolkit.devices"].subject, host.nvidia_driver.loaded
    assert (host.containers.devices if loaded and loaded.version == driver else expected) == expected
