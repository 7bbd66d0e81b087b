"""Commands on this machine when it is the node itself, with the environment of a login."""

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
"""PATH of root's login on Debian, Ubuntu and RHEL: its Python is the one of the system's packages."""
KEPT = ("SSH_CONNECTION", "TZ", "LANG", "http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY")
"""Environment variables of gpuprov that a command on this machine keeps; none of a Python environment."""


@dataclass(frozen=True)
class Answer:
    """Result of a command; `code` is negative if a signal ended it."""

    code: int
    stdout: bytes
    stderr: bytes


def login_environment() -> dict[str, str]:
    """Return the environment of a login: the system's folders precede those of the user's own PATH."""
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
        limit: maximum output in bytes.
        environment: environment in place of gpuprov's own.

    Raises:
        NodeFailed: no end within `seconds`, or more than `limit` bytes; the command is killed with the
            processes that it started.
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
        except BaseException:  # Ctrl-C reaches only this process: the command has its own process group
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
    """Kill a command and the processes that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _feed(pipe: IO[bytes] | None, text: bytes) -> None:
    if pipe is None:
        return
    with suppress(BrokenPipeError), pipe:  # a command that reads nothing may have ended already
        pipe.write(text)


def _upto(pipe: IO[bytes] | None, limit: int) -> bytes:
    return pipe.read(limit) if pipe else b""
