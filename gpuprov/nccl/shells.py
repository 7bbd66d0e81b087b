"""Shells for an all-reduce: on this machine, or on a node over SSH."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.probe.collect import CommandRunner
from gpuprov.probe.here import absolute, login_folder
from gpuprov.probe.node.variables import MPS_FOLDER, NO_MPS
from gpuprov.ssh.transport import ConnectionLimits, Session, Target, fan_out
from gpuprov.untrusted.parsing import whole_number
from gpuprov.untrusted.programs import TooSlow, run_limited

T = TypeVar("T")
NOT_FOUND = 127
TIMED_OUT = 124  # timeout(1)
OUTPUT_BYTES = 64 << 20
"""Maximum output of a program on this machine in bytes; of a larger one it is killed."""
BEYOND_S = 30
"""Seconds that SSH waits beyond the time limit that the node enforces itself."""


class Shell(Protocol):
    """A machine on which programs run."""

    where: str
    pythons: Sequence[str]

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], timeout_s: float
    ) -> tuple[str, int]:
        """Run a command; return its output and its exit code, 127 if there is no such program. It uses no MPS
        server, unless a variable of the login names the server's folder.

        Raises:
            TimeoutError: it did not finish in time; it and its children are killed.
        """
        ...

    def find(self, program: str) -> str | None:
        """Return the path of a program, or None."""
        ...

    def place(self, script: Path) -> str:
        """Copy a script to the machine if needed, and return its path there."""
        ...


class Local:
    """This machine."""

    where = "this machine"
    pythons: Sequence[str] = (sys.executable, "python3")

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], timeout_s: float
    ) -> tuple[str, int]:
        """See `Shell`; it starts in the folder of a login. The code is `NOT_FOUND` for a missing program.

        Raises:
            TimeoutError: it exceeded `timeout_s`.
            NodeFailed: its output exceeds `OUTPUT_BYTES`.
        """
        own = {MPS_FOLDER: NO_MPS, **os.environ, **environment}
        try:
            answer = run_limited(
                [absolute(command[0]), *command[1:]],
                seconds=timeout_s,
                limit=OUTPUT_BYTES,
                environment=own,
                folder=login_folder(),
                merged=True,
                session=True,
            )
        except FileNotFoundError:
            return f"{command[0]}: not found", NOT_FOUND
        except TooSlow:
            raise TimeoutError from None
        return answer.stdout.decode("utf-8", "replace"), answer.code

    def find(self, program: str) -> str | None:
        """See `Shell`: by PATH; None if it is not found."""
        return shutil.which(program)

    def place(self, script: Path) -> str:
        """See `Shell`."""
        return str(script)


class Remote:
    """A node; `clear` removes files placed on it.

    Args:
        session: an open connection whose time limit exceeds that of any command here.
    """

    pythons: Sequence[str] = ("python3",)

    def __init__(self, session: CommandRunner, where: str) -> None:
        self._session, self.where = session, where
        self._folder: str | None = None

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], timeout_s: float
    ) -> tuple[str, int]:
        """See `Shell`; the node enforces the time limit. NodeFailed for an incomplete answer."""
        stated = [f"{name}={value}" for name, value in environment.items()]
        line = shlex.join(["timeout", "-k", "5", f"{timeout_s:g}", "env", *stated, *command])
        mps = f'{MPS_FOLDER}="${{{MPS_FOLDER}-{NO_MPS}}}"'
        answer = self._session.run(f"{mps} {line} 2>&1 </dev/null; code=$?; echo; echo gpuprov-exit $code")
        text, _, status = answer.stdout.decode(errors="replace").rpartition("gpuprov-exit ")
        code = whole_number(status.strip())
        if code is None:
            raise NodeFailed(f"no whole answer of `{command[0]}` from {self.where}")
        if code in (TIMED_OUT, 128 + signal.SIGKILL):
            raise TimeoutError
        return text.removesuffix("\n"), code

    def find(self, program: str) -> str | None:
        """See `Shell`: by the login shell's `command -v`; None if it is not found."""
        return self._output_of(f"command -v {shlex.quote(program)}") or None

    def place(self, script: Path) -> str:
        """See `Shell`: write it into a folder under /tmp, which the first call makes; NodeFailed if it cannot
        be made.
        """
        if not self._folder:
            self._folder = self._output_of("mktemp -d /tmp/gpuprov-XXXXXXXX")
        if not self._folder:
            raise NodeFailed(f"{self.where} makes no folder for a script", do="check the space in its /tmp")
        place = f"{self._folder}/{script.name}"
        self._session.run(f"cat >{shlex.quote(place)}", script.read_bytes())
        return place

    def clear(self) -> None:
        """Remove the placed files from the node, if there are any."""
        if self._folder:
            self._session.run(f"rm -r {shlex.quote(self._folder)}")

    def _output_of(self, line: str) -> str:
        """Return the stripped output of a command line, also if it fails."""
        return self._session.run(line).stdout.decode(errors="replace").strip()


def on_node(target: Target, work: Callable[[Shell], T], *, command_s: float) -> T:
    """Run `work` on a node over one connection, then remove the files placed there.

    Args:
        command_s: time limit of any command.

    Raises:
        GpuprovError: the node could not be reached, or the work failed there.
    """

    def visit(session: Session) -> T:
        shell = Remote(session, target.name)
        try:
            return work(shell)
        finally:
            shell.clear()

    [(_, answer)] = fan_out([target], visit, limits=ConnectionLimits(command_s=command_s + BEYOND_S))
    if isinstance(answer, GpuprovError):
        raise answer
    return answer
