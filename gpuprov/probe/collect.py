"""Facts of this machine or of one at the other end of a session."""

from __future__ import annotations

from typing import Protocol

from gpuprov.probe.facts import Facts
from gpuprov.probe.here import run_here
from gpuprov.probe.payload import ANSWER_LIMIT, PROBE, Parameters, Payload, build


class CommandOutput(Protocol):
    """Output of a command."""

    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...


class CommandRunner(Protocol):
    """A runner of command lines in a login shell, such as `gpuprov.ssh.transport.Session`."""

    def run(self, command: str, stdin: bytes = b"") -> CommandOutput:
        """Run one command line to its end."""
        ...


def collect(
    session: CommandRunner, parameters: Parameters, *, become: bool = True, password: str | None = None
) -> Facts:
    """Collect the facts of the node at the other end of `session`, with one command.

    Args:
        become: use sudo if the login is not root.
        password: sudo's password, if it requires one.

    Raises:
        NodeFailed: no Python there, or no complete answer; a collector that failed raises nothing, see
            `Facts.missing`.
    """
    return ask(session, build(parameters, become=become, password=password))


def ask(session: CommandRunner, payload: Payload) -> Facts:
    """Collect facts with an existing payload, which several nodes may share.

    Raises:
        NodeFailed: as for `collect`.
    """
    output = session.run(payload.command, payload.stdin)
    return Facts.from_answer(payload.answer(output.stdout, output.stderr))


def collect_local(
    parameters: Parameters, *, become: bool = True, seconds: float = 120.0, modules: tuple[str, ...] = PROBE
) -> Facts:
    """Collect facts of this machine, with the same payload in a separate process.

    Raises:
        NodeFailed: as for `collect`.
    """
    return ask(_LocalRunner(seconds), build(parameters, become=become, modules=modules))


class _LocalRunner:
    """A runner of command lines on this machine, each killed after a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def run(self, command: str, stdin: bytes = b"") -> CommandOutput:
        """Run a command line in the system's shell, for `_seconds` at most; raises as `run_here`."""
        return run_here(command, stdin, seconds=self._seconds, limit=ANSWER_LIMIT)
