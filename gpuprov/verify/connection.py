"""From the lock's connection to the command that opens a shell on a node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuprov.lock import Connection

CONNECT_TIMEOUT_S = 10
LOCAL = ["/bin/sh"]


@dataclass(frozen=True)
class Limits:
    """Seconds: for one command on a node, and for all commands of a node together."""

    command_s: float = 30.0
    node_s: float = 180.0


def ssh_argv(address: str, connection: Connection) -> list[str]:
    """The command that runs `sh` as root on a node.

    curve25519 goes first: the key exchange that OpenSSH 9 prefers (sntrup761) costs 0.1 s of CPU for
    each connection, measured with 100 nodes. Keepalives notice a node that died within 15 s.
    """
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": str(CONNECT_TIMEOUT_S),
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
        "ControlMaster": "no",
        "ControlPath": "none",
        "LogLevel": "ERROR",
        "KexAlgorithms": "^curve25519-sha256",
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
    shell = ["sh"] if connection.user == "root" else ["sudo", "-n", "--", "sh"]
    return ["ssh", "-T", *stated, "--", address, *shell]
