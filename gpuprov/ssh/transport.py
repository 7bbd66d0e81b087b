"""Commands on many nodes at once: over SSH with Fabric and Paramiko, or without SSH on this machine.

A node has one connection, and a command one exec channel. Each failure is a `GpuprovError` with a message of
one line; other nodes are delayed by its time-out at most.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import paramiko

from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed, Unreachable
from gpuprov.model.connection import Connection
from gpuprov.model.lock import Lock
from gpuprov.probe.here import login_environment, login_folder, run_here
from gpuprov.ssh import openssh
from gpuprov.ssh.connect import BeyondParamiko, ClosedBeforeBanner, close, connect
from gpuprov.ssh.connect import ConnectionLimits as ConnectionLimits
from gpuprov.ssh.contained import contained
from gpuprov.ssh.conversation import ChannelConversation, Conversation, PipeConversation
from gpuprov.ssh.dispatch import DIRECT, Dispatch, Work, with_place
from gpuprov.ssh.failures import reason
from gpuprov.ssh.route import Route, route
from gpuprov.ssh.wording import NO_SESSION, NO_SUCH_NAME, PAM_REFUSED, SEE_CONSOLE

LOG = logging.getLogger(__name__)
T = TypeVar("T")
PAUSES_S = (0.5, 1.0, 2.0)
GRACE_S = 1.0
"""Seconds after a command's time limit until its connection is closed."""


@dataclass(frozen=True)
class Target:
    """A node with its connection settings, and the places of these and of its address (`FILE:LINE`)."""

    name: str
    address: str
    connection: Connection
    place: str = field(default="", compare=False)
    address_place: str = field(default="", compare=False)

    @cached_property
    def route(self) -> Route:
        """The route to the node.

        Raises:
            InvalidInput: as `route`.
        """
        return route(self.address, self.connection)


E = TypeVar("E", bound=GpuprovError)


def placed(error: E, node: Target) -> E:
    """Return the error with the file and line of the node's address or connection settings added, unless they
    are not known or already there.
    """
    place = (NO_SUCH_NAME in error.seen and node.address_place) or node.place
    if place and place not in error.do:
        error.do = "; ".join(filter(None, [error.do, f"see {place}"]))
    return error


@dataclass(frozen=True)
class Output:
    """The result of a command."""

    code: int
    stdout: bytes
    stderr: bytes


def targets(lock: Lock, names: Iterable[str] | None = None) -> list[Target]:
    """Return the lock's hosts, or those named, with their connections, in the lock's order.

    Names that the lock does not have are ignored.
    """
    wanted = None if names is None else set(names)
    return [
        Target(
            host,
            group.hosts[host],
            group.connection_of(host),
            lock.place_of(host),
            lock.place_of(host, address=True),
        )
        for host, group in lock.hosts().items()
        if wanted is None or host in wanted
    ]


class Session:
    """Interface to run commands on one node."""

    def __init__(self, target: Target, limits: ConnectionLimits) -> None:
        self.target, self._limits = target, limits

    def run(self, command: str, stdin: bytes = b"") -> Output:
        """Run one command line in the user's login shell; return its output, also if it failed.

        Raises:
            NodeFailed: no answer in time, or an answer larger than allowed.
            Unreachable: the connection broke.
        """
        raise NotImplementedError

    def converse(self, command: str, stdin: bytes = b"") -> Conversation:
        """Start a command that gets more input later; the caller has to close it.

        Raises:
            Unreachable: the connection broke.
        """
        raise NotImplementedError

    def abort(self) -> None:
        """End the running command, from another thread; do nothing if it ends together with this process."""


class LocalSession(Session):
    """This machine: each command is a process of it, with the environment and the folder of a login."""

    def run(self, command: str, stdin: bytes = b"") -> Output:
        """See `Session`."""
        seconds, limit = self._limits.command_s, self._limits.answer_bytes
        done = run_here(command, stdin, seconds=seconds, limit=limit, environment=login_environment())
        return Output(done.code, done.stdout, done.stderr)

    def converse(self, command: str, stdin: bytes = b"") -> Conversation:
        """See `Session`."""
        argv = ["/bin/sh", "-c", command]
        limit = self._limits.answer_bytes
        return PipeConversation(argv, stdin, limit, login_environment(), login_folder())


class OpenSshSession(Session):
    """A session in which each command has its own connection of the system's `ssh`."""

    def __init__(self, target: Target, limits: ConnectionLimits) -> None:
        super().__init__(target, limits)
        self._stop = threading.Event()

    def run(self, command: str, stdin: bytes = b"") -> Output:
        """See `Session`."""
        node, limits = self.target, self._limits
        argv = openssh.ssh_argv(node.route, limits.connect_s)
        seconds, limit = limits.connect_s + limits.command_s, limits.answer_bytes
        done = openssh.run_command(argv, command, stdin, seconds=seconds, limit=limit, stop=self._stop)
        return Output(done.code, done.stdout, done.stderr)

    def converse(self, command: str, stdin: bytes = b"") -> Conversation:
        """See `Session`."""
        argv = openssh.ssh_argv(self.target.route, self._limits.connect_s)
        return PipeConversation([*argv, command], stdin, self._limits.answer_bytes)

    def abort(self) -> None:
        """See `Session`."""
        self._stop.set()


class ParamikoSession(Session):
    """A session with one open connection, and a channel for each command."""

    def __init__(self, target: Target, transport: paramiko.Transport, limits: ConnectionLimits) -> None:
        super().__init__(target, limits)
        self.transport = transport

    def run(self, command: str, stdin: bytes = b"") -> Output:
        """See `Session`; log the exit code and the time. The connection is closed if the peer exceeds the
        time limit by `GRACE_S` seconds.

        Raises:
            NodeFailed: also for the exit code `NO_SESSION`, with which sshd answers if PAM opens no session.
        """
        limits = self._limits
        deadline = time.monotonic() + limits.command_s
        # Paramiko has no time limit for the reply to a request, and none for a peer that stops reading.
        watch = threading.Timer(limits.command_s + GRACE_S, self.transport.close)
        watch.daemon = True
        watch.start()
        begun = time.monotonic()
        try:
            answer = self._talk(command, stdin, deadline)
        except GpuprovError:
            raise
        except Exception as error:  # Paramiko re-raises any exception caused by a peer's packet in its thread
            if isinstance(error, TimeoutError) or time.monotonic() > deadline:
                raise NodeFailed(f"no answer within {limits.command_s:g} s of running a command") from None
            raise Unreachable(f"the connection broke: {reason(error)}") from error
        else:
            seconds = time.monotonic() - begun
            LOG.debug("%s: exit %d in %.2f s: %.300s", self.target.name, answer.code, seconds, command)
            if answer.code == NO_SESSION:
                raise NodeFailed(PAM_REFUSED, do=SEE_CONSOLE)
            return answer
        finally:
            watch.cancel()

    def converse(self, command: str, stdin: bytes = b"") -> Conversation:
        """See `Session`."""
        limits = self._limits
        return ChannelConversation(self.transport, command, stdin, limits.connect_s, limits.answer_bytes)

    def abort(self) -> None:
        """See `Session`."""
        self.transport.close()

    def _talk(self, command: str, stdin: bytes, deadline: float) -> Output:
        """Run a command over a new channel; return at most 64 KiB of its standard error.

        Raises:
            NodeFailed: its standard output is larger than allowed.
            TimeoutError: it does not end before `deadline` (`time.monotonic`).
        """
        channel = self.transport.open_session(timeout=self._limits.connect_s)
        try:
            channel.exec_command(command)
            self._write(channel, stdin, deadline)
            stdout = self._read(channel, deadline)
            stderr = channel.recv_stderr(65536)
            if not channel.status_event.wait(max(deadline - time.monotonic(), 0.1)):
                raise TimeoutError
            return Output(channel.recv_exit_status(), stdout, stderr)
        finally:
            channel.close()

    def _write(self, channel: paramiko.Channel, stdin: bytes, deadline: float) -> None:
        """Write as much as is accepted until the deadline; a command that reads no input may have ended
        already.
        """
        rest = memoryview(stdin)
        with suppress(OSError):
            while rest:
                channel.settimeout(max(deadline - time.monotonic(), 0.001))
                rest = rest[channel.send(bytes(rest[:65536])) :]
            channel.shutdown_write()

    def _read(self, channel: paramiko.Channel, deadline: float) -> bytes:
        """Return the whole standard output.

        Raises:
            NodeFailed: it is larger than allowed.
            TimeoutError: it does not end before `deadline`.
        """
        chunks: list[bytes] = []
        room = self._limits.answer_bytes
        while True:
            channel.settimeout(max(deadline - time.monotonic(), 0.001))
            chunk = channel.recv(65536)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
            room -= len(chunk)
            if room < 0:
                raise NodeFailed(f"answered more than {self._limits.answer_bytes >> 20} MB")


V = TypeVar("V")


@dataclass(frozen=True)
class PerNode(Generic[V, T]):
    """Work with a separate input for each node; a worker gets only its nodes' inputs."""

    work: Callable[[Session, V], T]
    values: Mapping[str, V]

    def __call__(self, session: Session) -> T:
        """Do the work on a node."""
        return self.work(session, self.values[session.target.name])

    def of(self, names: Collection[str]) -> PerNode[V, T]:
        """Return the work for some of the nodes."""
        return PerNode(self.work, {name: self.values[name] for name in names})


def fan_out(
    nodes: list[Target],
    work: Callable[[Session], T],
    *,
    answer: Any = None,
    dispatch: Dispatch = DIRECT,
    limits: ConnectionLimits | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[tuple[Target, T | GpuprovError]]:
    """Do `work` on every node, some at a time; yield answers as they become ready.

    An answer that is not yet taken counts as a node under way: nodes decide how large their answers are, and
    a slow caller would otherwise fill the memory.

    Args:
        answer: type of the work's result, with which workers' answers are validated, see `Dispatch.spread`.
            Without it, workers can answer only None.
        meanwhile: is called once, while the first nodes are under way, for what the answers will need.

    A node's failure is yielded as its answer, not raised, and does not repeat the node's name. On an
    interruption, or if the caller takes no more answers, connections are closed without waiting for running
    work.

    Raises:
        CrewLost: as `Dispatch.spread`.
    """
    limits = limits or ConnectionLimits()
    if dispatch.crew is not None:
        meanwhile()
        by_name = {node.name: node for node in nodes}
        # A route depends on this machine's ~/.ssh/config: a worker computes its own.
        unrouted = {name: replace(node) for name, node in by_name.items()}

        def part(names: Collection[str]) -> Work[Target, T | GpuprovError]:
            their_work = work.of(names) if isinstance(work, PerNode) else work
            return partial(_visit_all, their_work, dispatch.here(), limits)

        for name, found in dispatch.spread(part, unrouted, answer=answer):
            yield by_name[name], found
        return
    yield from _fan_out_here(nodes, work, dispatch.forks, limits, meanwhile)


def _fan_out_here(
    nodes: list[Target],
    work: Callable[[Session], T],
    forks: int,
    limits: ConnectionLimits,
    meanwhile: Callable[[], object],
) -> Iterator[tuple[Target, T | GpuprovError]]:
    """Do work on nodes from this process, as `fan_out` describes."""
    places, rest = max(1, min(forks, len(nodes))), iter(nodes)
    under_way: set[Session] = set()
    running: dict[Future[T | GpuprovError], Target] = {}
    finished: SimpleQueue[Future[T | GpuprovError]] = SimpleQueue()
    with ThreadPoolExecutor(max_workers=places) as pool:

        def start(number: int) -> None:
            for node in islice(rest, number):
                visit = pool.submit(_visit, node, work, limits, under_way)
                running[visit] = node
                visit.add_done_callback(finished.put)

        try:
            start(places)
            meanwhile()
            while running:
                done = finished.get()
                node = running.pop(done)
                start(1)
                yield node, with_place(done.result())
                del done  # the answer, while the next one is waited for
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for session in list(under_way):
                session.abort()


def _visit_all(
    work: Callable[[Session], T],
    dispatch: Dispatch,
    limits: ConnectionLimits,
    nodes: Mapping[str, Target],
) -> dict[str, T | GpuprovError]:
    """Do work on nodes from this process; return node → result or error."""
    answers = fan_out(list(nodes.values()), work, dispatch=dispatch, limits=limits)
    return {node.name: answer for node, answer in answers}


def _visit(
    node: Target, work: Callable[[Session], T], limits: ConnectionLimits, under_way: set[Session]
) -> T | GpuprovError:
    """Do work on a node in a new session; return the result or the error, and log which it is.

    The session is in `under_way` during the work.
    """

    def visit() -> T:
        with open_session(node, limits) as session:
            under_way.add(session)
            try:
                return work(session)
            finally:
                under_way.discard(session)

    begun = time.monotonic()
    answer = contained(node.name, visit)
    how = str(answer) if isinstance(answer, GpuprovError) else "answered"
    LOG.info("%s: %s, %.2f s", node.name, how, time.monotonic() - begun)
    return answer


@contextmanager
def open_session(node: Target, limits: ConnectionLimits) -> Iterator[Session]:
    """Open a new connection to a node, and close it at the end of the context; this machine needs none. What
    Paramiko cannot do is left to OpenSSH.

    sshd closes connections before its banner while too many logins are in progress, and connections from an
    address with failed logins: those are tried again a few times.

    Raises:
        Unreachable: the node cannot be reached, or refuses the login.
        InvalidInput: as `connect`.
    """
    if node.route.local:
        yield LocalSession(node, limits)
        return
    opened = []
    for pause_s in (0.0, *PAUSES_S):
        time.sleep(pause_s * (1 + random.random()))  # noqa: S311
        try:
            opened = connect(node.route, limits)
        except ClosedBeforeBanner as closed:
            unheard = closed
        except (Unreachable, InvalidInput) as error:
            raise placed(error, node) from error
        except BeyondParamiko:
            yield OpenSshSession(node, limits)
            return
        else:
            break
    if not opened:
        raise unheard
    try:
        yield ParamikoSession(node, opened[-1].transport, limits)
    finally:
        close(opened)
