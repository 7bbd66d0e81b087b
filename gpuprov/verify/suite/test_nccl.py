"""Checks of NCCL's library and configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.nccl import changes_connections

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


@pytest.mark.check("nccl.library", "ldconfig -p | grep libnccl")
def test_nccl_library_has_the_version(host: Node, expected: list[str]) -> None:
    """Check that NCCL's library files have the locked version and no other."""
    assert host.libraries.versions("libnccl") == expected


@pytest.mark.check("nccl.configuration", "cat /etc/nccl.conf /root/.nccl.conf", "env | grep NCCL_")
def test_nccl_has_the_locked_settings(host: Node, group: LockedGroup, expected: dict[str, str]) -> None:
    """Check the effective value of each NCCL setting, from variables and NCCL's files; no other is set."""
    login, libraries = group.login, host.libraries
    others = set(filter(changes_connections, libraries.nccl_variables(login)))
    wanted = {**dict.fromkeys(sorted(others)), **expected}
    result = {name: libraries.nccl_setting(name, value, login) for name, value in wanted.items()}
    assert result == expected
