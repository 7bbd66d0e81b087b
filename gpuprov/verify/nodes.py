"""The nodes under test: a host of testinfra each, its group of the lock, and what is wanted of it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from testinfra.host import Host

from gpuprov.errors import GpuprovError
from gpuprov.model.lock import Lock, LockedGroup
from gpuprov.roles import Expectation
from gpuprov.roles.image import waits_for
from gpuprov.ssh.contained import contained
from gpuprov.ssh.route import route
from gpuprov.verify.connection import HERE, TimeLimits, here_argv, ssh_argv, sudo_answer
from gpuprov.verify.shell import Shell, ShellBackend
from gpuprov.verify.wanted import wanted

if TYPE_CHECKING:
    from gpuprov.verify.modules import Node

AT_ONCE = 16  # threads that wait for nodes
CLOSED_UNHEARD = "kex_exchange_identification"  # as ssh says it
PAUSES_S = (0.5, 1.0, 2.0)


@dataclass
class NodeUnderTest:
    """One node; `lost` is why it cannot be judged (any further), `image` says that it never was booted."""

    name: str
    group: LockedGroup
    backend: ShellBackend
    host: Node
    lost: GpuprovError | None = field(default=None)
    image: bool = False

    @cached_property
    def wanted(self) -> dict[str, Expectation]:
        """What is wanted of it, by check id; of an image what one can show."""
        found = wanted(self.group)
        return {check: each for check, each in found.items() if not self.image or waits_for(each) is None}

    def connect(self) -> None:
        """Open its shell; what went wrong is kept in `lost`.

        sshd closes connections without a word while too many are logging in (MaxStartups: a jump host, or
        many names of one machine): those are tried again.
        """
        for pause_s in (0.0, *PAUSES_S):
            time.sleep(pause_s * (1 + random.random()))  # noqa: S311
            self.lost = self._open()
            if CLOSED_UNHEARD not in str(self.lost):
                return

    def _open(self) -> GpuprovError | None:
        return contained(self.name, self.backend.shell.open)

    def ask_ahead(self, commands: Iterable[str]) -> None:
        """Ask what is going to be asked, so that the answers are there; a broken connection is `lost`."""

        def ask() -> None:
            for command in commands:
                self.backend.remember(command)

        self.lost = contained(self.name, ask) or self.lost


def nodes_under_test(
    lock: Lock, *, local: bool, limits: TimeLimits, password: str | None = None, image: bool = False
) -> list[NodeUnderTest]:
    """All nodes of a lock, not yet connected; `local` means this machine in place of every one, `image` that
    what waits for a boot is not asked."""
    nodes = []
    for name, group in lock.hosts().items():
        argv, greeting = HERE, ""
        if not local:
            way = route(group.hosts[name], group.connection_of(name))
            argv = (here_argv if way.local else ssh_argv)(way, password=bool(password))
            greeting = sudo_answer(password) if password and way.user != "root" else ""
        shell = Shell(argv, limits.command_s, greeting)
        backend = ShellBackend(name, shell, limits.node_s)
        host = Host(backend)
        backend.set_host(host)
        nodes.append(NodeUnderTest(name, group, backend, host, image=image))
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
