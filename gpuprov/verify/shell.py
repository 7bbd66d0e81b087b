"""One shell per node: testinfra's commands over a single exec channel, with cached results.

testinfra's own ssh backend starts a process and a channel for every command; here the node runs one
`sh` that reads commands from its standard input, and an answer ends with a random mark
on both of its outputs. Results are cached: verification observes and changes nothing.
"""

from __future__ import annotations

import os
import secrets
import selectors
import shlex
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from testinfra.backend.base import BaseBackend, CommandResult

from gpuprov.errors import NodeFailed, Unreachable
from gpuprov.ssh.wording import NO_SESSION, PAM_REFUSED, SEE_CONSOLE, of_openssh
from gpuprov.untrusted.programs import kill_group
from gpuprov.verify.sharing import Rule

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Maximum size of one answer: standard output and standard error together."""
NODE_BYTES = 32 * 1024 * 1024
"""Maximum size of all answers of a node, which are kept until its last test has run.

The recorded node has 24 kB; the files of an initramfs and the aliases of all modules are some MiB. In memory
a character has up to four bytes.
"""
COMMANDS = 4096
"""Maximum number of commands of a node: a node can name any number of things, and each is a command."""
COMMAND_BYTES = 128 * 1024
"""Maximum length of a command: Linux accepts no longer argument (MAX_ARG_STRLEN), and a command can contain
text of the node.
"""
LAST_WORDS_S = 5
"""Seconds to wait for the end of a shell whose output has ended."""
SAID = 300
"""Characters of a command's errors in a message."""
TOO_MUCH = "the node's answers are larger than its limit"
SSH_FAILED = 255  # ssh(1): "255 if an error occurred"
PRELUDE = 'LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"; export LC_ALL PATH'
"""First command of each shell: English messages, and the folders of system programs in the PATH."""


class Result(CommandResult):  # type: ignore[misc]
    """testinfra's record of a result, as text the command and its errors, which its messages quote."""

    def __str__(self) -> str:
        """Return the command, and the start of its standard error on one line."""
        said = " ".join(self.stderr.split())[:SAID]
        return f"`{self.command.decode(errors='replace')}`" + (f": {said}" if said else "")


class NoAnswer(NodeFailed):
    """Error: a command timed out, or its output exceeds the limit."""


@dataclass
class _Pipe:
    """One output of the shell, read up to the mark that ends an answer.

    Attributes:
        data: what has been read and not taken.
        searched: offset before which `data` does not contain the mark.
    """

    fd: int
    data: bytearray = field(default_factory=bytearray)
    searched: int = 0

    def read(self) -> bool:
        """Read available data, or wait for some; return False at the end of the stream."""
        chunk = os.read(self.fd, 65536)
        self.data += chunk
        return bool(chunk)

    def take(self, mark: bytes) -> tuple[bytes, bytes] | None:
        """Return the bytes before the mark and the rest of the mark's line; None until both have arrived.

        They are removed from the data.
        """
        start = self.data.find(b"\n" + mark, self.searched)
        end = self.data.find(b"\n", start + 1)
        if start < 0 or end < 0:
            self.searched = max(0, len(self.data) - len(mark) - 16) if start < 0 else start
            return None
        answer, line = bytes(self.data[:start]), bytes(self.data[start + 1 + len(mark) : end])
        del self.data[: end + 1]
        self.searched = 0
        return answer, line


class Shell:
    """A running `sh`, on a node or on this machine; it is started by `open` or the first `ask`.

    Args:
        argv: the command that starts it, such as `ssh … sh`.
        timeout_s: time limit of a command.
        greeting: first lines of input, for programs before the shell.
    """

    def __init__(self, argv: list[str], timeout_s: float, greeting: str = "") -> None:
        self.argv, self.timeout_s, self.greeting = argv, timeout_s, greeting
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start the shell and wait for its first answer, for up to `timeout_s`.

        Raises:
            Unreachable: ssh failed.
            NodeFailed: ssh connected, but no shell answered (no sudo rights, a login shell that exits).
        """
        self._process = subprocess.Popen(
            self.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # so that `close` ends what it started, too
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._out, self._err = (_Pipe(p.fileno()) for p in (self._process.stdout, self._process.stderr) if p)
        try:
            self.ask(self.greeting + PRELUDE, quoted=False)
        except NoAnswer:  # its message would contain the greeting, which may hold a password
            raise NodeFailed(f"no shell within {self.timeout_s:g} s of connecting") from None

    def ask(self, command: str, *, quoted: bool = True) -> tuple[int, bytes, bytes]:
        """Run one command without input; return its exit status, standard output and standard error.

        Args:
            quoted: run it in a new `sh -c`; otherwise in this shell itself, which keeps its variables.

        Raises:
            Unreachable: the connection broke.
            NodeFailed: the shell ended for another reason.
            NoAnswer: the command took longer than `timeout_s` or printed too much; the shell is closed.
        """
        if self._process is None:
            self.open()
        assert self._process is not None and self._process.stdin is not None  # noqa: PT018
        mark = secrets.token_hex(16)
        line = f"/bin/sh -c {shlex.quote(command)} </dev/null" if quoted else command
        whole = f"{line}\nprintf '\\n{mark} %d\\n' $? ; printf '\\n{mark}\\n' >&2\n"
        (status, out), err = self._exchange(command, whole.encode(), mark.encode())
        if not status.isdigit() or len(status) > 9:
            self.close()
            raise NodeFailed(f"`{command}` ended with a status that is not a number")
        return int(status), out, err

    def _exchange(self, command: str, whole: bytes, mark: bytes) -> tuple[tuple[bytes, bytes], bytes]:
        """Send the lines of a command; return its status with its output, and its standard error.

        The time limit is one for both directions: a node can also stop reading. After NoAnswer the shell is
        closed.

        Args:
            command: the command in messages.
            mark: what ends both outputs.

        Raises:
            Unreachable, NodeFailed, NoAnswer: as `ask`.
        """
        assert self._process is not None and self._process.stdin is not None  # noqa: PT018
        deadline, stdin = time.monotonic() + self.timeout_s, self._process.stdin.fileno()
        rest, out, err = memoryview(whole), None, None
        with selectors.DefaultSelector() as selector:
            selector.register(stdin, selectors.EVENT_WRITE)
            for pipe in (self._out, self._err):
                selector.register(pipe.fd, selectors.EVENT_READ, pipe)
            while out is None or err is None:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                late = not ready or time.monotonic() >= deadline  # a node that sends on is ready for ever
                begun = len(self._out.data) + len(self._err.data)
                if late or begun > MAX_ANSWER_BYTES:
                    self.close()
                    raise NoAnswer(
                        f"the answer of `{command}` did not end" if begun else f"no answer to `{command}`",
                        expected=f"at most {MAX_ANSWER_BYTES >> 20} MiB within {self.timeout_s:g} s",
                    )
                if not all(key.data.read() for key, _ in ready if key.data):
                    raise self._lost()
                if any(key.fd == stdin for key, _ in ready):
                    rest = self._send(rest)
                    if not rest:
                        selector.unregister(stdin)
                out = out or self._out.take(mark)
                err = err or self._err.take(mark)
        return (out[1].strip(), out[0]), err[0]

    def _send(self, rest: memoryview) -> memoryview:
        """Write a piece of a command's lines to the shell; return what remains.

        Raises:
            Unreachable, NodeFailed: the shell has ended.
        """
        assert self._process is not None and self._process.stdin is not None  # noqa: PT018
        try:
            return rest[os.write(self._process.stdin.fileno(), rest[:65536]) :]
        except BlockingIOError:
            return rest
        except BrokenPipeError:
            raise self._lost() from None

    def _lost(self) -> NodeFailed | Unreachable:
        """Close the shell that ended, and return its error with ssh's last line as the reason.

        It is `Unreachable` if ssh failed, otherwise `NodeFailed`.
        """
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_WORDS_S)
        status = self._process.poll()
        os.set_blocking(self._err.fd, False)
        with suppress(BlockingIOError):
            while self._err.read():
                pass
        lines = bytes(self._err.data or self._out.data).decode(errors="replace").strip().splitlines()
        self.close()
        if status == NO_SESSION:
            return NodeFailed(PAM_REFUSED, do=SEE_CONSOLE)
        reason = lines[-1] if lines else f"{self.argv[0]} ended with status {status}"
        return (
            Unreachable(of_openssh("\n".join(lines)) or reason)
            if status == SSH_FAILED
            else NodeFailed(reason)
        )

    def another(self) -> Shell:
        """Return a second shell of the same node, not started yet."""
        return Shell(self.argv, self.timeout_s, self.greeting)

    def kill(self) -> None:
        """End its processes while another thread reads from it, which sees the end."""
        process = self._process
        if process and process.poll() is None:
            kill_group(process)

    def close(self) -> None:
        """End the shell with its process group, if it runs; a later `ask` starts another."""
        if self._process is None:
            return
        process, self._process = self._process, None
        kill_group(process)  # also if ssh has ended: its ProxyCommand can outlive it
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                with suppress(BrokenPipeError):
                    pipe.close()
        process.wait()


class ShellBackend(BaseBackend):  # type: ignore[misc]
    """testinfra's commands through a `Shell`, each run once.

    Args:
        name: the node's name.
        budget_s: time limit of all commands of the node together, in seconds.
        budget_bytes: limit of the size of all its answers.

    Attributes:
        shared: function that returns whether a command and its arguments may run on other nodes too.
        sharable: the commands so far for which it does, in order, also failed ones.
    """

    NAME = "node"

    def __init__(self, name: str, shell: Shell, budget_s: float, budget_bytes: int = NODE_BYTES) -> None:
        super().__init__(name)
        self.shell, self.budget_s, self.budget_bytes = shell, budget_s, budget_bytes
        self._answers: dict[str, CommandResult | NodeFailed] = {}
        self._hung: set[str] = set()
        self._running: set[str] = set()
        self._change = threading.Condition()
        self._asked: set[str] = set()
        self.shared: Rule = lambda *_: False
        self.sharable: list[str] = []

    def __repr__(self) -> str:
        return f"<node {self.hostname}>"

    def run(self, command: str, *args: str, **kwargs: Any) -> CommandResult:
        """Return a command's result, from the cache if it ran before.

        An exit status other than 0 is no error.

        Raises:
            Unreachable: the connection broke.
            NodeFailed: the command has no result, now or when it ran before.
        """
        whole = self.quote(command, *args)
        if whole not in self._asked and self.shared(command, args):
            self.sharable.append(whole)
        self._asked.add(whole)
        answer = self.remember(whole)
        if isinstance(answer, NodeFailed):
            raise answer
        return answer

    def forget(self) -> None:
        """Drop the cached results."""
        self._answers.clear()

    def remember(self, command: str, shell: Shell | None = None) -> CommandResult | NodeFailed:
        """Run a command once and cache its result or its failure; return it; after `COMMANDS` different ones
        return NoAnswer.

        A command that another thread runs is waited for.

        Args:
            shell: another shell; if it ends, or has no rights, that is not cached.

        Raises:
            Unreachable: the connection broke; this is not cached.
        """
        with self._change:
            self._change.wait_for(lambda: command not in self._running)
            if command in self._answers:
                return self._answers[command]
            if len(self._answers) >= COMMANDS:
                return NoAnswer(f"`{command}` was not run: the node needs more than {COMMANDS} commands")
            self._running.add(command)
        try:
            answer = self._ask(command, shell or self.shell)
            if shell is None or isinstance(answer, CommandResult | NoAnswer):
                self._answers[command] = answer
            return answer
        finally:
            with self._change:
                self._running.remove(command)
                self._change.notify_all()

    def _ask(self, command: str, shell: Shell) -> CommandResult | NodeFailed:
        """Run a command; return its result, or its failure, and subtract its time and size from the budgets.

        A program without an answer counts as hung. It is not run, which is a failure, if it has more than
        `COMMAND_BYTES`, its program hung before, or a budget is used up.

        Raises:
            Unreachable: the connection broke.
        """
        program = command.split(maxsplit=1)[0]
        if len(command.encode(errors="replace")) > COMMAND_BYTES:
            return NoAnswer(f"`{command[:64]}…` was not run: it has more than {COMMAND_BYTES >> 10} KiB")
        if reason := self._used_up(program):
            return NoAnswer(f"`{command}` was not run: {reason}")
        started = time.monotonic()
        try:
            answer = shell.ask(command)
            with self._change:
                self.budget_bytes -= len(answer[1]) + len(answer[2])
            if self.budget_bytes < 0:
                return NoAnswer(f"the answer of `{command}` was dropped: {TOO_MUCH}")
            return self.result(answer, command)
        except NoAnswer as failure:
            self._hung.add(program)
            return failure
        except NodeFailed as failure:
            return failure
        finally:
            with self._change:
                self.budget_s -= time.monotonic() - started

    def _used_up(self, program: str) -> str:
        """Return why a program is not run: it hung before, or a budget is used up.

        An empty text if it is run.
        """
        if program in self._hung:
            return f"{program} hung before"
        if self.budget_bytes < 0:
            return TOO_MUCH
        return "the node's time is used up" if self.budget_s <= 0 else ""

    def result(self, answer: tuple[int, bytes, bytes], command: str) -> CommandResult:
        """Return testinfra's record of a result; invalid UTF-8 is replaced."""
        code, out, err = answer
        return Result(
            self, code, command.encode(), out.decode(errors="replace"), err.decode(errors="replace")
        )
