"""Checks of package holds: held, skipped by unattended upgrades, proven by a simulated upgrade; and of the
held packages: no other version preferred, their files as packaged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from gpuprov.model.lock import LockedGroup

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


@pytest.mark.check("pins.hold", "apt-config dump APT::Ignore-Hold")
def test_every_package_is_held(host: Node, expected: list[str]) -> None:
    """Check that every expected package is held, and that apt does not ignore holds."""
    held = set() if host.packages.ignores_holds else host.packages.held
    assert [name for name in expected if name in held] == expected


@pytest.mark.check("pins.unattended", "apt-config dump Unattended-Upgrade::Package-Blacklist")
def test_unattended_upgrades_leave_them_alone(host: Node, expected: list[str]) -> None:
    """Check that the blacklist of unattended upgrades has every expected pattern."""
    spared = host.packages.unattended_blacklist
    assert [pattern for pattern in expected if pattern in spared] == expected


@pytest.mark.check("pins.simulated", "apt-get -s -o Debug::NoLocking=true dist-upgrade")
def test_upgrade_would_move_none(host: Node, group: LockedGroup, expected: list[str]) -> None:
    """Check that a simulated dist-upgrade does not change any package of the lock."""
    assert sorted(host.packages.moved_by_upgrade & set(group.components.packages())) == expected


@pytest.mark.check("pins.candidates", "apt-cache policy", "apt-config dump APT::Default-Release")
def test_apt_prefers_no_other_version(host: Node, group: LockedGroup, expected: list[str]) -> None:
    """Check that no preference makes apt take another version of a package of the lock."""
    assert host.packages.preferred(group.components.packages()) == expected


@pytest.mark.check("pins.files", "dpkg-divert --list")
def test_files_are_the_packages(
    host: Node, group: LockedGroup, expected: list[str], record_property: Callable[[str, str], None]
) -> None:
    """Check that no file of the lock's packages is missing, diverted or changed."""
    held = group.components.packages()
    read, total = host.package_files.read(held)
    record_property("note", f"{read} of {total} bytes compared by checksum, further files by the record")
    assert host.package_files.differing(held) == expected
