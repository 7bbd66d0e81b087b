"""Nodes under test: each a host of testinfra with its group of the lock and its expectations."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from testinfra.host import Host

from gpuprov.errors import GpuprovError
from gpuprov.model.lock import Lock, LockedGroup
from gpuprov.roles import Expectation
from gpuprov.ssh.contained import contained
from gpuprov.ssh.route import Route, route
from gpuprov.verify.connection import HERE, TimeLimits, here_argv, ssh_argv, sudo_answer
from gpuprov.verify.outside import offered
from gpuprov.verify.processor_time import ProcessorTime
from gpuprov.verify.sharing import rules
from gpuprov.verify.shell import Shell, ShellBackend
from gpuprov.verify.wanted import wanted

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node

AT_ONCE = 16  # threads that wait for nodes
CLOSED_UNHEARD = "kex_exchange_identification"  # ssh's message
PAUSES_S = (0.5, 1.0, 2.0)
"""Seconds before the second and further attempts to connect, each lengthened at random up to twice."""


@dataclass
class NodeUnderTest:
    """One node, with its group of the lock and its connection.

    Attributes:
        backend: runs commands on it and caches their results.
        host: testinfra's host, with gpuprov's modules.
        lost: why it cannot be judged (any further); None while it can.
        image: whether it is a tree that was never booted.
        local: whether this machine is in its place.
        ports: port of sshd → the methods that it offers from outside, once asked.
        processor_time: what its tests may still use.
    """

    name: str
    group: LockedGroup
    backend: ShellBackend
    host: Node
    lost: GpuprovError | None = field(default=None)
    image: bool = False
    local: bool = False
    ports: dict[int, list[str]] = field(default_factory=dict)
    processor_time: ProcessorTime = field(default_factory=ProcessorTime)

    @cached_property
    def wanted(self) -> dict[str, Expectation]:
        """Expectations by check id, in the order of the lock.

        An image has only those that need no booted machine.
        """
        return wanted(self.group, image=self.image)

    @cached_property
    def kernels(self) -> list[str]:
        """The kernels that the module must match: the stated one, or the running and the next one.

        A kernel that is held back from the next boot is included.

        Raises:
            NodeFailed: as `NvidiaDriver.kernels`.
        """
        named = self.group.setting("kernel")
        return self.host.nvidia_driver.kernels if named in (None, "running") else [named]

    @cached_property
    def way(self) -> Route:
        """The way from here to the node; raises as `route`."""
        way = route(self.group.hosts[self.name], self.group.connection_of(self.name))
        return replace(way, local=way.local or self.local)

    def offered(self, port: int) -> list[str]:
        """Return the methods that sshd offers from outside on a port; [] if it is unreachable.

        Raises:
            NodeFailed: sshd on the port of the connection, or behind the node's host key, offers none.
        """
        if port not in self.ports:
            self.ports[port] = offered(self.way, port) or []
        return self.ports[port]

    def forget(self) -> None:
        """Drop its answers and the values of its observers, after its last test."""
        self.backend.forget()
        self.host = Host(self.backend)
        self.backend.set_host(self.host)

    def connect(self) -> None:
        """Open its shell; keep an error in `lost`.

        sshd closes connections without a message while too many are logging in (MaxStartups: a jump host, or
        many names of one machine): those are tried again, up to three times. Other errors are final.
        """
        for pause_s in (0.0, *PAUSES_S):
            time.sleep(pause_s * (1 + random.random()))  # noqa: S311
            self.lost = self._open()
            if CLOSED_UNHEARD not in str(self.lost):
                return

    def _open(self) -> GpuprovError | None:
        """Open the shell; return the error, or None."""
        return contained(self.name, self.backend.shell.open)

    def ask_ahead(self, commands: Iterable[str], ports: Iterable[int] = ()) -> None:
        """Run commands and look at ports in advance, so that the results are cached.

        A command that fails or hangs is cached as such. A broken connection sets `lost`. A port that fails is
        asked again by its test.
        """

        def ask() -> None:
            for command in commands:
                self.backend.remember(command)

        self.lost = contained(self.name, ask) or self.lost
        for port in () if self.lost else ports:
            contained(self.name, partial(self.offered, port))


def nodes_under_test(
    lock: Lock, *, local: bool, limits: TimeLimits, password: str | None = None, image: bool = False
) -> list[NodeUnderTest]:
    """Return all nodes of a lock, not yet connected.

    Args:
        local: use this machine in place of every node, as the current user.
        limits: time limits for each node.
        password: sudo's password; None if sudo needs none.
        image: leave out expectations that need a booted machine.

    Raises:
        InvalidInput: ssh's configuration of a node's address cannot be used.
    """
    nodes, shared = [], rules(lock)
    for name, group in lock.hosts().items():
        argv, greeting = HERE, ""
        if not local:
            way = route(group.hosts[name], group.connection_of(name))
            argv = (here_argv if way.local else ssh_argv)(way, password=bool(password))
            greeting = sudo_answer(password) if password and way.user != "root" else ""
        shell = Shell(argv, limits.command_s, greeting)
        backend = ShellBackend(name, shell, limits.node_s)
        if len(group.hosts) > 1:  # the rule reads all texts of the code
            backend.shared = shared[name]
        host = Host(backend)
        backend.set_host(host)
        nodes.append(NodeUnderTest(name, group, backend, host, image=image, local=local))
    return nodes


def connect_all(nodes: list[NodeUnderTest]) -> None:
    """Connect to all nodes concurrently: time-outs of unreachable nodes do not add up.

    An error is kept in the node's `lost`.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(NodeUnderTest.connect, nodes))


def ask_all_ahead(first: NodeUnderTest, others: list[NodeUnderTest]) -> None:
    """Run the first node's commands on the others, and look at its ports of sshd, concurrently: nodes of a
    group need the same ones.

    Results are cached. A command with text of the first node, and one that only one of the others needs, runs
    in its test.
    """
    stated = first.wanted.get("ssh.ports")
    known = {22, first.way.port, *(stated.expected if stated else ())}
    commands, ports = first.backend.sharable, [port for port in first.ports if port in known]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda node: node.ask_ahead(commands, ports), others))
