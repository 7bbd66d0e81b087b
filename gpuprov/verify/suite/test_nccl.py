"""Checks of NCCL's library and configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.model.lock import LockedGroup

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


@pytest.mark.check("nccl.library", "ldconfig -p | grep libnccl")
def test_nccl_library_has_the_version(host: Node, expected: list[str]) -> None:
    """Check that NCCL's library files have the locked version and no other."""
    assert host.libraries.versions("libnccl") == expected


@pytest.mark.check("nccl.configuration", "cat /etc/nccl.conf /root/.nccl.conf", "env | grep NCCL_")
def test_nccl_is_told_what_the_lock_says(host: Node, group: LockedGroup, expected: dict[str, str]) -> None:
    """Check the effective value of each locked NCCL setting, from variables and NCCL's files."""
    login = group.login
    result = {name: host.libraries.nccl_setting(name, value, login) for name, value in expected.items()}
    assert result == expected
