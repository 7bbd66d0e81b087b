"""The system's own `ssh`: verify's way to nodes, and ours where Paramiko has no algorithm in common with one.

Paramiko 5.1 knows one post-quantum key exchange, mlkem768x25519-sha256; OpenSSH before 9.9 knows another. A
node that offers nothing else is reached this way.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from gpuprov.errors import NodeFailed, Unreachable
from gpuprov.ssh.route import Route
from gpuprov.ssh.wording import of_openssh
from gpuprov.untrusted import on_one_line

SSH_FAILED = 255  # ssh(1): "255 if an error occurred"


def ssh_argv(route: Route, connect_s: float, **more: str) -> list[str]:
    """`ssh` along a route, without a command: strict about host keys, one connection, no questions.

    Args:
        more: options beyond these, as ssh_config(5) names them.
    """
    options = {
        **more,
        "BatchMode": "yes",
        "ConnectTimeout": str(round(connect_s)),
        "ControlMaster": "no",
        "ControlPath": "none",
        "LogLevel": "ERROR",
        "Port": str(route.port),
        "User": route.user,
        **ssh_options(route),
    }
    return ["ssh", "-T", *_words(options), "--", route.address]


def ssh_options(route: Route) -> dict[str, str]:
    """What ssh has to be told beside user and port; the rest it reads in its own configuration."""
    stated = route.stated
    options = {"StrictHostKeyChecking": "yes"}
    if stated.known_hosts:
        options["UserKnownHostsFile"] = _several(route.known_hosts)
    if stated.identity_file:
        options |= {"IdentityFile": stated.identity_file, "IdentitiesOnly": "yes"}
    if route.jump:
        options["ProxyCommand"] = _through(route.jump, route)
    elif stated.jump:
        options["ProxyJump"] = "none"
    return options


def _through(hop: Route, to: Route) -> str:
    """The command that ssh speaks through; each host on the way is entered along its own route.

    ProxyJump hands none of our options on: files of host keys and keys would be others there.
    """
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "ControlMaster": "no",
        "ControlPath": "none",
        "LogLevel": "ERROR",
        "Port": str(hop.port),
        "User": hop.user,
        "UserKnownHostsFile": _several(hop.known_hosts),
        "ProxyCommand": _through(hop.jump, hop) if hop.jump else _literal(hop.proxy_command or "none"),
    }
    keys = [word for path in _there(hop.identity_files) for word in ("-o", f"IdentityFile={path}")]
    place = f"[{to.hostname}]:{to.port}"
    return _literal(shlex.join(["ssh", "-T", *_words(options), *keys, "-W", place, "--", hop.address]))


def _literal(text: str) -> str:
    """Text in which ssh puts no TOKENS in place."""
    return text.replace("%", "%%")


def _words(options: dict[str, str]) -> list[str]:
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def _several(paths: Sequence[str]) -> str:
    """Files as one option's value, which is read with quotes."""
    return " ".join(f'"{path}"' if " " in path else path for path in paths)


def _there(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if Path(path).expanduser().exists()]


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
        raise Unreachable(of_openssh(_clean(b"".join(said))) or "ssh did not get in")
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


def _clean(said: bytes) -> str:
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    return "\n".join(on_one_line(line)[:200] for line in lines)
