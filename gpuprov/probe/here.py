"""Commands on this machine, where it is the node itself: as a login there would run them, without a login."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from gpuprov.errors import NodeFailed

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What root's login has on Debian, Ubuntu and RHEL: its Python is the one that the system's packages use."""
KEPT = ("SSH_CONNECTION", "TZ", "LANG", "http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY")
"""Variables that a command here keeps of gpuprov's own; those of a Python environment are not among them."""


@dataclass(frozen=True)
class Answer:
    """What a command said; `code` is negative where a signal ended it."""

    code: int
    stdout: bytes
    stderr: bytes


def login_environment() -> dict[str, str]:
    """The environment of a login: programs of the system come before those of the person's own PATH."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    own = [each for each in os.environ.get("PATH", "").split(":") if each not in SYSTEM_PATH.split(":")]
    prefix = os.environ.get("VIRTUAL_ENV")
    own = [each for each in own if each and not (prefix and each.startswith(prefix))]
    user = "root" if os.geteuid() == 0 else getpass.getuser()
    home = os.environ.get("HOME", "/root" if os.geteuid() == 0 else "/")
    return {**kept, "PATH": ":".join([SYSTEM_PATH, *own]), "HOME": home, "USER": user, "LOGNAME": user}


def run_here(
    command: str,
    stdin: bytes = b"",
    *,
    seconds: float,
    limit: int,
    environment: Mapping[str, str] | None = None,
) -> Answer:
    """Run one command line in the system's shell, to its end.

    Args:
        limit: bytes that it may answer.
        environment: instead of gpuprov's own.

    Raises:
        NodeFailed: no end in `seconds`, or more than `limit` bytes; what it had started is ended with it.
    """
    begun = time.monotonic()
    pipe = subprocess.PIPE
    said: list[bytes] = []
    argv = ["/bin/sh", "-c", command]
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, process_group=0)
    with process:
        timer = threading.Timer(seconds, _end, [process])
        threads: Sequence[threading.Thread] = [
            timer,
            threading.Thread(target=_feed, args=(process.stdin, stdin), daemon=True),
            threading.Thread(target=lambda: said.append(_upto(process.stderr, 65536)), daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            answer = _upto(process.stdout, limit + 1)
            if len(answer) > limit:
                _end(process)
            code = process.wait()
        except BaseException:  # Ctrl-C reaches us alone: the command has a process group of its own
            _end(process)
            raise
        finally:
            timer.cancel()
        for thread in threads:
            thread.join()
    if len(answer) > limit:
        raise NodeFailed(f"answered more than {limit >> 20} MB")
    if code < 0 and time.monotonic() - begun >= seconds:
        raise NodeFailed(f"no answer within {seconds:g} s of running a command")
    return Answer(code, answer, b"".join(said))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _feed(pipe: IO[bytes] | None, text: bytes) -> None:
    if pipe is None:
        return
    with suppress(BrokenPipeError), pipe:  # a command that reads nothing may be gone already
        pipe.write(text)


def _upto(pipe: IO[bytes] | None, limit: int) -> bytes:
    return pipe.read(limit) if pipe else b""
