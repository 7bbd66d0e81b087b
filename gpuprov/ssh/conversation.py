"""Dialogue with a program on a node, which gets several inputs one after the other over one open channel."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Mapping

import paramiko

from gpuprov.errors import NodeFailed, Unreachable
from gpuprov.ssh.failures import reason
from gpuprov.untrusted.programs import kill_group

PIECE = 65536


class Conversation:
    """A running program with its input and its output. `close` closes its standard input, which ends it.

    Args:
        limit: maximum size of one answer in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def say(self, text: bytes, seconds: float = 20.0) -> None:
        """Write to the program's standard input.

        Raises:
            Unreachable: the input is not accepted.
        """
        raise NotImplementedError

    def hear(self, whole: Callable[[bytearray], bool], seconds: float) -> tuple[bytes, bytes]:
        """Return the output as soon as `whole` accepts it as an answer, and the standard error so far.

        If the program ends before that, return its incomplete output. `whole` is called for each piece of
        output, which can be one byte: it should search only the new part.

        Raises:
            NodeFailed: no answer in time, or an answer larger than allowed.
            Unreachable: the connection broke.
        """
        until, said = time.monotonic() + seconds, bytearray()
        while not whole(said):
            left = until - time.monotonic()
            piece = self._piece(left) if left > 0 else None
            if piece is None:
                raise NodeFailed(f"no answer within {seconds:g} s")
            if not piece:
                break
            said += piece
            if len(said) > self._limit:
                raise NodeFailed(f"answered more than {self._limit >> 20} MB")
        return bytes(said), self._complaints()

    def close(self) -> None:
        """End the program."""
        raise NotImplementedError

    def _piece(self, seconds: float) -> bytes | None:
        """Return some of the output; empty at its end, None when the time is over."""
        raise NotImplementedError

    def _complaints(self) -> bytes:
        """Return the standard error so far."""
        raise NotImplementedError


class ChannelConversation(Conversation):
    """A conversation over a Paramiko channel.

    Args:
        seconds: time limit for the start of the command.

    Raises:
        Unreachable: the connection broke, or the command or its input is not accepted in time.
    """

    def __init__(
        self, transport: paramiko.Transport, command: str, stdin: bytes, seconds: float, limit: int
    ) -> None:
        """Start the command and write its input, each within `seconds`.

        Raises:
            Unreachable: the connection breaks.
        """
        super().__init__(limit)
        # Paramiko waits without a time limit for the reply to a request.
        watch = threading.Timer(seconds, transport.close)
        watch.daemon = True
        watch.start()
        try:
            self._channel = transport.open_session(timeout=seconds)
            self._channel.exec_command(command)
        except Exception as error:  # Paramiko re-raises any exception caused by a peer's packet in its thread
            raise Unreachable(f"the connection broke: {reason(error)}") from error
        finally:
            watch.cancel()
        self.say(stdin, seconds)

    def say(self, text: bytes, seconds: float = 20.0) -> None:
        """See `Conversation`; `seconds` limits all writes together: the node determines their sizes."""
        until, rest = time.monotonic() + seconds, memoryview(text)
        try:
            while rest:
                if (left := until - time.monotonic()) <= 0:
                    raise TimeoutError("the input is not accepted in time")
                self._channel.settimeout(left)
                rest = rest[self._channel.send(bytes(rest[:PIECE])) :]
        except OSError as error:
            raise Unreachable(f"it refuses commands: {reason(error)}") from error

    def close(self) -> None:
        """See `Conversation`."""
        self._channel.close()

    def _piece(self, seconds: float) -> bytes | None:
        """See `Conversation`; None if there is no output in time. Unreachable if the connection broke."""
        self._channel.settimeout(seconds)
        try:
            return self._channel.recv(PIECE)
        except TimeoutError:
            return None
        except Exception as error:
            raise Unreachable(f"the connection broke: {reason(error)}") from error

    def _complaints(self) -> bytes:
        """See `Conversation`; only the part that has arrived and was not returned before."""
        ready = self._channel.recv_stderr_ready()
        return self._channel.recv_stderr(PIECE) if ready else b""


class PipeConversation(Conversation):
    """A conversation with a process on this machine: `ssh`, or another program."""

    def __init__(
        self,
        argv: list[str],
        stdin: bytes,
        limit: int,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> None:
        super().__init__(limit)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            argv,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            env=environment,
            cwd=folder,
            process_group=0,
        )
        self._said: list[bytes] = []
        threading.Thread(target=self._drain, daemon=True).start()
        self.say(stdin)

    def say(self, text: bytes, seconds: float = 20.0) -> None:
        """See `Conversation`; kill a process that does not accept the input within `seconds`.

        The error shows the last line of the process's standard error.
        """
        assert self._process.stdin is not None  # noqa: S101 - a pipe was requested
        watch = threading.Timer(seconds, kill_group, [self._process])
        watch.daemon = True
        watch.start()
        try:
            rest = memoryview(text)
            while rest:
                rest = rest[self._process.stdin.write(rest) or 0 :]
        except OSError as error:
            last = b"".join(self._said).decode("utf-8", "replace").strip().splitlines()
            raise Unreachable(last[-1][:200] if last else f"it refuses commands: {reason(error)}") from None
        finally:
            watch.cancel()

    def close(self) -> None:
        """See `Conversation`; kill a process that does not end within 10 seconds."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            kill_group(self._process)
            self._process.wait()
        kill_group(self._process)  # ssh's ProxyCommand can outlive it
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _piece(self, seconds: float) -> bytes | None:
        """See `Conversation`; None if there is no output in time."""
        assert self._process.stdout is not None  # noqa: S101 - a pipe was requested
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        return os.read(self._process.stdout.fileno(), PIECE)

    def _drain(self) -> None:
        """Read standard error and keep its first 16 pieces: a full pipe would block the program."""
        assert self._process.stderr is not None  # noqa: S101 - a pipe was requested
        with self._process.stderr as errors:
            while piece := errors.read(PIECE):
                if len(self._said) < 16:
                    self._said.append(piece)

    def _complaints(self) -> bytes:
        """See `Conversation`."""
        return b"".join(self._said)
