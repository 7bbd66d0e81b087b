"""Checks of sshd's effective options and ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.model.lock import LockedGroup

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


@pytest.mark.check("ssh.options", "ls -l /etc/ssh/sshd_config.d")
def test_sshd_goes_by_the_locked_options(host: Node, group: LockedGroup, expected: dict[str, str]) -> None:
    """Check that sshd's effective options for the fleet's login are the locked ones."""
    assert host.sshd.effective(group.login, expected) == expected


@pytest.mark.check("ssh.ports", "ss -Hltnp")
def test_sshd_listens_on_the_locked_ports(host: Node, expected: list[int]) -> None:
    """Check that sshd listens on exactly the locked TCP ports."""
    assert host.sshd.ports == expected


@pytest.mark.check("ssh.undone", "tail -n 5 /var/lib/gpuprov/deadman/history")
def test_no_change_of_access_was_undone(host: Node, expected: None) -> None:
    """Check that the dead man's switch did not undo a change of SSH or firewall settings."""
    assert host.sshd.undone == expected
