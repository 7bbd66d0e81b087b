"""Commands that open a shell on a node, from the lock's connection."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from gpuprov.ssh import openssh
from gpuprov.ssh.route import Route

CONNECT_TIMEOUT_S = 10
"""Seconds within which ssh has to connect."""
HERE = ["/bin/sh"]
"""Command that starts a shell on this machine, as the current user."""
ANSWERED = "gpuprov-answered"
"""Last line of the input that is for sudo and not for the shell."""


@dataclass(frozen=True)
class TimeLimits:
    """Limits in seconds: for one command on a node, and for all commands of a node together."""

    command_s: float = 30.0
    node_s: float = 180.0


def ssh_argv(route: Route, *, password: bool = False) -> list[str]:
    """Return the command that runs `sh` as root on a node by ssh, with sudo unless the login is root.

    curve25519 is preferred: the key exchange that OpenSSH 9 prefers (sntrup761) costs 0.1 s of CPU for each
    connection, measured with 100 nodes. Keepalives detect a dead node within 15 s.

    Args:
        password: whether `sudo_answer` is written to its standard input first; without it sudo must need no
            password.
    """
    argv = openssh.ssh_argv(
        route,
        CONNECT_TIMEOUT_S,
        ServerAliveInterval="5",
        ServerAliveCountMax="3",
        KexAlgorithms="^curve25519-sha256",
    )
    return [*argv, _root_shell(route.user, password)]


def here_argv(route: Route, *, password: bool = False) -> list[str]:
    """Return the command that runs `sh` as root on this machine, with sudo unless the route's user is root.

    Args:
        password: as for `ssh_argv`.
    """
    return ["/bin/sh", "-c", f"exec {_root_shell(route.user, password)}"]


def _root_shell(user: str, password: bool) -> str:
    """Return the shell command that opens root's shell, with sudo unless the user is root.

    With a password it skips its input up to the line `ANSWERED`, and then starts the shell.
    """
    if user == "root":
        return "sh"
    if not password:
        return "sudo -n -- sh"
    wait = f'while IFS= read -r line && [ "$line" != {ANSWERED} ]; do :; done; exec sh'
    return f"sudo -S -p '' -- sh -c {shlex.quote(wait)}"


def sudo_answer(password: str) -> str:
    """Return the first input of a shell opened with a password: the password, then `ANSWERED`.

    The shell skips it if sudo needs no password.
    """
    return f"{password}\n{ANSWERED}\n"
