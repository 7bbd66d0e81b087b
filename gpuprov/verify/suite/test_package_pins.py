"""Checks of package holds: held, skipped by unattended upgrades, proven by a simulated upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.model.lock import LockedGroup

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


@pytest.mark.check("pins.hold", "apt-config dump APT::Ignore-Hold")
def test_every_package_is_held(host: Node, expected: list[str]) -> None:
    """Check that every expected package is held, and that apt does not ignore holds."""
    held = set() if host.apt.ignores_holds else host.apt.held
    assert [name for name in expected if name in held] == expected


@pytest.mark.check("pins.unattended", "apt-config dump Unattended-Upgrade::Package-Blacklist")
def test_unattended_upgrades_leave_them_alone(host: Node, expected: list[str]) -> None:
    """Check that the blacklist of unattended upgrades has every expected pattern."""
    spared = host.apt.unattended_blacklist
    assert [pattern for pattern in expected if pattern in spared] == expected


@pytest.mark.check("pins.simulated", "apt-get -s -o Debug::NoLocking=true dist-upgrade")
def test_upgrade_would_move_none(host: Node, group: LockedGroup, expected: list[str]) -> None:
    """Check that a simulated dist-upgrade does not change any package of the lock."""
    ours = {name for _, component in group.components.each() for name in component.closure}
    assert sorted(host.apt.moved_by_upgrade & ours) == expected
