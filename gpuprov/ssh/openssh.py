"""The system's own `ssh`: verify's way to nodes, and ours where Paramiko has no algorithm in common with one.

Paramiko 5.1 knows one post-quantum key exchange, mlkem768x25519-sha256; OpenSSH before 9.9 knows another. A
node that offers nothing else is reached this way.
"""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import IO

from gpuprov.errors import NodeFailed, Unreachable
from gpuprov.model.lock import Connection

SSH_FAILED = 255  # ssh(1): "255 if an error occurred"


def ssh_argv(address: str, connection: Connection, connect_s: float, **more: str) -> list[str]:
    """`ssh` to an address, without a command: strict about host keys, one connection, no questions.

    Args:
        more: options beyond these, as ssh_config(5) names them.
    """
    options = {
        **more,
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": str(round(connect_s)),
        "ControlMaster": "no",
        "ControlPath": "none",
        "LogLevel": "ERROR",
        "Port": str(connection.port),
        "User": connection.user,
    }
    if connection.known_hosts:
        options["UserKnownHostsFile"] = str(Path(connection.known_hosts).expanduser())
    if connection.identity_file:
        options["IdentityFile"] = str(Path(connection.identity_file).expanduser())
        options["IdentitiesOnly"] = "yes"
    if connection.jump:
        options["ProxyJump"] = connection.jump
    stated = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-T", *stated, "--", address]


def run_command(
    argv: list[str], command: str, stdin: bytes, *, seconds: float, limit: int
) -> tuple[int, bytes, bytes]:
    """Exit code, standard output and error of a command on a node; every one is a connection of its own.

    Raises:
        NodeFailed: no answer in `seconds`, or more than `limit` bytes of it.
        Unreachable: ssh did not get in; says what it said.
    """
    said: list[bytes] = []
    begun = time.monotonic()
    pipe = subprocess.PIPE
    with subprocess.Popen([*argv, command], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        timer = threading.Timer(seconds, process.kill)
        threads = [
            timer,
            threading.Thread(target=_feed, args=(process.stdin, stdin)),
            threading.Thread(target=lambda: said.append(_upto(process.stderr, 65536))),
        ]
        for thread in threads:
            thread.start()
        answer = _upto(process.stdout, limit + 1)
        if len(answer) > limit:
            process.kill()
        code = process.wait()
        timer.cancel()
        for thread in threads:
            thread.join()
    if len(answer) > limit:
        raise NodeFailed(f"answered more than {limit >> 20} MB")
    if time.monotonic() - begun >= seconds:
        raise NodeFailed(f"no answer within {seconds:g} s of running a command")
    if code == SSH_FAILED:
        raise Unreachable(_last_line(b"".join(said)) or "ssh did not get in")
    return code, answer, b"".join(said)


def _feed(pipe: IO[bytes] | None, text: bytes) -> None:
    if pipe is None:
        return
    try:
        with pipe:
            pipe.write(text)
    except BrokenPipeError:  # a command that reads nothing may be gone already
        return


def _upto(pipe: IO[bytes] | None, limit: int) -> bytes:
    return pipe.read(limit) if pipe else b""


def _last_line(said: bytes) -> str:
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    return "".join(letter for letter in lines[-1] if letter.isprintable())[:200] if lines else ""
