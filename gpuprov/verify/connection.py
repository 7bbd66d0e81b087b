"""From the lock's connection to the command that opens a shell on a node."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from gpuprov.model.connection import Connection
from gpuprov.model.lock import Lock
from gpuprov.ssh import openssh
from gpuprov.ssh.route import Route

CONNECT_TIMEOUT_S = 10
HERE = ["/bin/sh"]
ANSWERED = "gpuprov-answered"


@dataclass(frozen=True)
class TimeLimits:
    """Seconds: for one command on a node, and for all commands of a node together."""

    command_s: float = 30.0
    node_s: float = 180.0


def with_absolute_paths(lock: Lock) -> Lock:
    """The lock with the operator's files named so that every folder finds them."""
    groups = {}
    for name, group in lock.groups.items():
        own = {host: _with_absolute_paths(each) for host, each in (group.connections or {}).items()}
        found = {"connection": _with_absolute_paths(group.connection), "connections": own or None}
        groups[name] = group.model_copy(update=found)
    return lock.model_copy(update={"groups": groups})


def _with_absolute_paths(stated: Connection) -> Connection:
    files = {key: getattr(stated, key) for key in ("identity_file", "known_hosts")}
    found = {key: str(Path(path).expanduser().absolute()) for key, path in files.items() if path}
    return stated.model_copy(update=found)


def ssh_argv(route: Route, *, password: bool = False) -> list[str]:
    """The command that runs `sh` as root on a node.

    Args:
        password: `sudo_answer` comes first on its standard input.

    curve25519 goes first: the key exchange that OpenSSH 9 prefers (sntrup761) costs 0.1 s of CPU for
    each connection, measured with 100 nodes. Keepalives notice a node that died within 15 s.
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
    """The same for this machine."""
    return ["/bin/sh", "-c", f"exec {_root_shell(route.user, password)}"]


def _root_shell(user: str, password: bool) -> str:
    if user == "root":
        return "sh"
    if not password:
        return "sudo -n -- sh"
    wait = f'while IFS= read -r line && [ "$line" != {ANSWERED} ]; do :; done; exec sh'
    return f"sudo -S -p '' -- sh -c {shlex.quote(wait)}"


def sudo_answer(password: str) -> str:
    """What to say first to a shell opened with a password: sudo takes it, or no one does."""
    return f"{password}\n{ANSWERED}\n"
