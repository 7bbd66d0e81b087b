"""The nodes under test: a host of testinfra each, its group of the lock, and what is wanted of it."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from testinfra.host import Host

from gpuprov.errors import GpuprovError
from gpuprov.expectations import Expectation
from gpuprov.lock import Lock, LockedGroup
from gpuprov.verify.connection import LOCAL, Limits, ssh_argv, sudo_answer
from gpuprov.verify.shell import Shell, ShellBackend
from gpuprov.verify.wanted import wanted

if TYPE_CHECKING:
    from gpuprov.verify.modules import Node

AT_ONCE = 16  # threads that wait for nodes


@dataclass
class NodeUnderTest:
    """One node; `lost` is why it cannot be judged (any further)."""

    name: str
    group: LockedGroup
    backend: ShellBackend
    host: Node
    lost: GpuprovError | None = field(default=None)

    @cached_property
    def wanted(self) -> dict[str, Expectation]:
        """What is wanted of it, by check id."""
        return wanted(self.group)

    def connect(self) -> None:
        """Open its shell; what went wrong is kept in `lost`."""
        try:
            self.backend.shell.open()
        except GpuprovError as error:
            self.lost = error

    def ask_ahead(self, commands: Iterable[str]) -> None:
        """Ask what is going to be asked, so that the answers are there; a broken connection is `lost`."""
        try:
            for command in commands:
                self.backend.remember(command)
        except GpuprovError as error:
            self.lost = error


def nodes_under_test(
    lock: Lock, *, local: bool, limits: Limits, password: str | None = None
) -> list[NodeUnderTest]:
    """All nodes of a lock, not yet connected; `local` means this machine in place of every one."""
    nodes = []
    for name, group in lock.hosts().items():
        argv = LOCAL if local else ssh_argv(group.hosts[name], group.connection, password=bool(password))
        by_sudo = not local and group.connection.user != "root"
        greeting = sudo_answer(password) if password and by_sudo else ""
        shell = Shell(argv, limits.command_s, greeting)
        backend = ShellBackend(name, shell, limits.node_s)
        host = Host(backend)
        backend.set_host(host)
        nodes.append(NodeUnderTest(name, group, backend, host))
    return nodes


def connect_all(nodes: list[NodeUnderTest]) -> None:
    """Connect to all nodes side by side: one that is down costs its time-out once, not in a row."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(NodeUnderTest.connect, nodes))


def ask_all_ahead(first: NodeUnderTest, others: list[NodeUnderTest]) -> None:
    """Ask the others side by side what was asked of the first: nodes of a group are asked the same.

    A question that only one of them provokes is still asked when its test comes to it.
    """
    commands = first.backend.asked
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda node: node.ask_ahead(commands), others))
