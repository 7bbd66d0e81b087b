"""Checks of package repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.model.lock import LockedGroup

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


@pytest.mark.check(
    "repositories.sources", "grep -rs -E 'URIs|^deb' /etc/apt/sources.list /etc/apt/sources.list.d"
)
def test_apt_reads_the_locked_repositories(host: Node, expected: list[str]) -> None:
    """Check that every locked repository is used, by URL and suite; other repositories are ignored."""
    found = host.packages.sources
    assert [each for each in expected if each in found] == expected


@pytest.mark.check("repositories.file", "cat /etc/apt/sources.list.d/gpuprov.sources")
def test_own_file_is_as_the_role_writes_it(host: Node, expected: dict[str, str]) -> None:
    """Check that every part of gpuprov's own file of sources is as the role writes it."""
    assert host.packages.own_parts(expected) == expected


@pytest.mark.check("repositories.foreign", "apt-cache policy")
def test_nobody_else_offers_the_locks_packages(host: Node, group: LockedGroup, expected: list[str]) -> None:
    """Check that no other repository offers packages of the lock or belongs to NVIDIA, see `foreign`."""
    own = [repository.url for repository in group.repositories.values() if repository.url]
    assert host.packages.foreign(group.components.packages(), own) == expected
