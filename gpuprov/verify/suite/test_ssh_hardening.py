"""Checks of what sshd accepts, of PAM, and of sshd's ports, from the node and from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.access.shipped import compared
from gpuprov.model.lock import LockedGroup
from gpuprov.roles.ssh_hardening import ports
from gpuprov.verify.nodes import NodeUnderTest
from gpuprov.verify.outside import each_offered
from gpuprov.verify.readings import sshd_at_boot

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

# Not `ps -o args=`, which would read the titles of users' programs.
LISTENERS = "systemctl --no-pager status ssh.service sshd.service"
LINES = "grep -rsn '^[[:space:]]*[^#[:space:]]' /etc/ssh/sshd_config /etc/ssh/sshd_config.d"
PAM = "grep -n '^[[:space:]]*[^#[:space:]]' /etc/pam.d/sshd /etc/pam.d/common-auth /etc/pam.d/common-account"


@pytest.mark.check("ssh.options", LISTENERS, LINES)
def test_sshd_has_the_locked_options(host: Node, group: LockedGroup, expected: dict[str, str]) -> None:
    """Check that every listening sshd has the locked options, for each user and address."""
    assert host.sshd.in_effect(group.login, expected) == expected


@pytest.mark.check("ssh.logins", LISTENERS, LINES)
def test_nobody_else_may_log_in(host: Node, group: LockedGroup, expected: dict[str, str]) -> None:
    """Check that options that the lock does not state admit no other user than as shipped."""

    def read(keyword: str, value: str | None) -> str:
        """Return the shipped value for a stricter one."""
        return compared(keyword, value, expected[keyword])

    assert host.sshd.in_effect(group.login, expected, read) == expected


@pytest.mark.check("ssh.login_groups", "getent group")
def test_login_is_in_a_group_that_may_log_in(host: Node, group: LockedGroup, expected: list[str]) -> None:
    """Check that the login is in one of the groups of AllowGroups."""
    own = host.sshd.groups_of(group.login)
    assert (expected if own & set(expected) else sorted(own)) == expected


@pytest.mark.check("ssh.pam", PAM)
def test_nobody_logs_in_without_credentials(host: Node, expected: list[str]) -> None:
    """Check that sshd's PAM service refuses a user without credentials."""
    assert host.sshd.admitting == expected


@pytest.mark.check(
    "ssh.loaded", "ls -l --full-time /etc/ssh/sshd_config /etc/ssh/sshd_config.d /run/sshd.pid"
)
def test_sshd_has_read_its_files(host: Node, group: LockedGroup, expected: list[str]) -> None:
    """Check that no file of sshd is newer than its last start or reload."""
    assert host.sshd.unread(group.login) == expected


@pytest.mark.check("ssh.offered", LISTENERS, LINES)
def test_no_other_method_is_offered_from_outside(
    node: NodeUnderTest, host: Node, group: LockedGroup, expected: list[str]
) -> None:
    """Check the methods that each reachable port of sshd offers to a connection without credentials."""
    others = host.sshd.ports_of_options(group.login)
    found = each_offered(node.offered, node.way.port, others)
    other = {port: sorted({*methods} - {*expected}) for port, methods in found.items()}
    assert {port: methods for port, methods in other.items() if methods} == {}


@pytest.mark.check("ssh.files", "ls -l /etc/ssh")
def test_files_of_authorities_are_the_locked_ones(host: Node, expected: dict[str, str]) -> None:
    """Check the contents of the files of authorities, principals and the banner."""
    assert {path: host.sshd.checksum(path) for path in expected} == expected


@pytest.mark.check("ssh.ports", "ss -Hltnp")
def test_sshd_listens_on_the_locked_ports(host: Node, expected: list[int]) -> None:
    """Check that sshd listens on exactly the locked TCP ports, or systemd for it (ssh.socket)."""
    by_systemd = {*expected} & {*host.sshd.ports_of_systemd}
    assert sorted({*host.sshd.ports, *by_systemd}) == expected


@pytest.mark.check("ssh.port_labels", "semanage port --list")
def test_sshd_may_listen_on_the_locked_ports(host: Node, group: LockedGroup, expected: list[str]) -> None:
    """Check that SELinux gives the locked ports to sshd, so that it also listens after its next start."""
    assert host.sshd.unlabelled([*map(str, ports(group))]) == expected


@pytest.mark.check("ssh.at_boot", "systemctl is-enabled ssh.service sshd.service ssh.socket")
def test_sshd_starts_at_boot(host: Node, expected: str) -> None:
    """Check that one of sshd's units starts at boot."""
    assert sshd_at_boot(host) == expected


@pytest.mark.check("ssh.main_process", LISTENERS, "ss -ltnp '( sport = :22 )'")
def test_sshd_listens_as_the_main_process_of_its_unit(host: Node, expected: list[str]) -> None:
    """Check that systemd knows each listening sshd, and can restart it."""
    assert host.sshd.astray == expected


@pytest.mark.check("ssh.undone", "tail -n 5 /var/lib/gpuprov/deadman/history")
def test_no_change_of_access_was_undone(host: Node, expected: None) -> None:
    """Check that the dead man's switch did not undo a change of SSH or firewall settings."""
    assert host.sshd.undone == expected
