"""Programs with untrusted output, run within limits of time and bytes."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO

from gpuprov.errors import NodeFailed

STDERR_BYTES = 65536
"""Size of the kept part of standard error; the rest is read and dropped."""
LINGER_S = 2.0
"""Seconds for which output is read after the program has ended, if another process keeps its pipes open."""
LOOK_S = 0.2
"""Longest pause in seconds between two checks of `stop`, of the time and of the program's end."""
_PIECE = 65536
"""Maximum number of bytes that are read or written at a time."""


class TooSlow(NodeFailed):
    """Error: a program did not end within its time.

    Attributes:
        stdout: its standard output until then.
    """

    def __init__(self, seconds: float, stdout: bytes = b"") -> None:
        super().__init__(f"no answer within {seconds:g} s of running a command")
        self.stdout = stdout


@dataclass(frozen=True)
class Answer:
    """Result of a program.

    Attributes:
        code: the exit status; negative, the signal's number, if a signal ended it.
        stdout: all of standard output.
        stderr: the first `STDERR_BYTES` of standard error.
    """

    code: int
    stdout: bytes
    stderr: bytes


def run_limited(
    argv: Sequence[str],
    stdin: bytes = b"",
    *,
    seconds: float,
    limit: int,
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
    stop: threading.Event | None = None,
    kill_rest: bool = False,
    merged: bool = False,
    session: bool = False,
) -> Answer:
    """Run a program to its end, in its own process group; any exit status is a result.

    A process that left the group, such as a daemon or ssh's ProxyCommand, cannot delay the result by keeping
    the program's pipes open for more than `LINGER_S`.

    Args:
        argv: the program and its arguments.
        stdin: its standard input; it is no error if the program does not read all of it.
        seconds: maximum time until its end.
        limit: maximum standard output in bytes.
        environment: environment in place of gpuprov's own.
        folder: folder that it starts in, in place of the current one.
        stop: event that ends the program early.
        kill_rest: whether processes of the group that outlive the program are killed. Otherwise only a
            failure kills them.
        merged: whether standard error is part of standard output.
        session: whether the program gets its own session, so that it cannot ask at the terminal.

    Raises:
        TooSlow: no end within `seconds`; the program is killed with the processes that it started.
        NodeFailed: more than `limit` bytes, or `stop` was set; it is killed as well.
        OSError: the program cannot be started, for example because it does not exist.
    """
    with _started(argv, environment, folder, merged=merged, session=session) as process:
        run = _Run(process, stdin, time.monotonic() + seconds, limit, stop or threading.Event())
        run.exchange()
        code = run.wait()
        if code is None:
            raise TooSlow(seconds, bytes(run.stdout))
        if kill_rest:
            kill_group(process)
        return Answer(code, bytes(run.stdout), bytes(run.stderr))


def with_limits(argv: Sequence[str], *, memory: int, file: int) -> list[str]:
    """Return a command that runs a program with limits of its memory and of each file, both in bytes, where
    the system has such limits.
    """
    limits = f"ulimit -v {memory >> 10} 2>/dev/null; ulimit -f {file >> 9} 2>/dev/null"
    return ["/bin/sh", "-c", limits + '; exec "$@"', "sh", *argv]


@contextmanager
def _started(
    argv: Sequence[str],
    environment: Mapping[str, str] | None,
    folder: str | None,
    *,
    merged: bool,
    session: bool,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program with pipes in its own process group; yield it, and close its pipes at the end.

    After any exception, also Ctrl-C, the group is killed. At the end the program is awaited for `LINGER_S`.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.STDOUT if merged else pipe,
        bufsize=0,
        env=environment,
        cwd=folder,
        process_group=None if session else 0,
        start_new_session=session,
    )
    try:
        yield process
    except BaseException:  # Ctrl-C reaches only this process: the program has its own process group
        kill_group(process)
        raise
    finally:
        for each in (process.stdin, process.stdout, process.stderr):
            if each:
                each.close()
        with suppress(subprocess.TimeoutExpired):  # a process in the kernel cannot be killed
            process.wait(LINGER_S)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a program that leads a process group, and the other processes of the group.

    It is no error if all have ended.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass
class _Run:
    """The exchange with a running program, within its limits.

    Attributes:
        until: end of the time limit, by `time.monotonic`.
        limit: maximum standard output in bytes.
        stdout, stderr: output that has been read.
    """

    process: subprocess.Popen[bytes]
    stdin: bytes
    until: float
    limit: int
    stop: threading.Event
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)

    def exchange(self) -> None:
        """Write the input and read both outputs, until all pipes are closed or the time is over.

        It also returns `LINGER_S` after the program has ended. The caller finds out by `wait` whether it has
        ended.

        Raises:
            NodeFailed: too much output, or `stop` was set.
        """
        ended: float | None = None
        with selectors.DefaultSelector() as selector:
            self._add(selector, self.process.stdout, selectors.EVENT_READ, self.stdout)
            self._add(selector, self.process.stderr, selectors.EVENT_READ, self.stderr)
            self._add(selector, self.process.stdin, selectors.EVENT_WRITE)
            rest = memoryview(self.stdin)
            while selector.get_map() and (left := self.until - time.monotonic()) > 0:
                if self.stop.is_set():
                    raise NodeFailed("the command was interrupted")
                if ended is None and self.process.poll() is not None:
                    ended = time.monotonic()
                if ended is not None and time.monotonic() - ended > LINGER_S:
                    return
                for key, _ in selector.select(min(left, LOOK_S)):
                    if key.fileobj is self.process.stdin:
                        rest = self._write(selector, rest)
                    else:
                        self._read(selector, key)

    def wait(self) -> int | None:
        """Return the exit status; None if the program does not end before `until`."""
        try:
            return self.process.wait(max(self.until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            return None

    @staticmethod
    def _add(
        selector: selectors.BaseSelector, pipe: IO[bytes] | None, event: int, into: bytearray | None = None
    ) -> None:
        """Make a pipe non-blocking and register it with its buffer; a pipe that does not exist is ignored."""
        if pipe is not None:
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, event, into)

    def _write(self, selector: selectors.BaseSelector, rest: memoryview) -> memoryview:
        """Write a piece of the rest of the input and return what remains; close the pipe if nothing remains.

        A program that has closed its input gets no more of it.
        """
        pipe = self.process.stdin
        if pipe is None:
            return rest
        try:
            rest = rest[os.write(pipe.fileno(), rest[:_PIECE]) :] if rest else rest
        except BlockingIOError:
            return rest
        except BrokenPipeError:  # a program that reads no input may have ended already
            rest = rest[:0]
        if not rest:
            selector.unregister(pipe)
            pipe.close()
        return rest

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        """Read a piece of an output into its buffer; unregister the pipe at its end.

        Of standard error only the first `STDERR_BYTES` are kept.

        Raises:
            NodeFailed: standard output is larger than `limit`.
        """
        try:
            piece = os.read(key.fd, _PIECE)
        except BlockingIOError:
            return
        if not piece:
            selector.unregister(key.fileobj)
        elif key.data is self.stdout:
            self.stdout += piece
            if len(self.stdout) > self.limit:
                raise NodeFailed(f"answered more than {self.limit >> 20} MB")
        else:
            self.stderr += piece[: STDERR_BYTES - len(self.stderr)]
