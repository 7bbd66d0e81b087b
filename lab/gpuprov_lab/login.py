"""The lab's login to its nodes: one key, checked host keys, no user's configuration."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NamedTuple

OPTIONS = {
    "StrictHostKeyChecking": "yes",
    "IdentitiesOnly": "yes",
    "BatchMode": "yes",
    "LogLevel": "ERROR",
    "ConnectTimeout": "10",
    # Debian 12 would prefer sntrup761, which costs 0.1 s of processor time at each end.
    "KexAlgorithms": "^curve25519-sha256",
}


class Patience(NamedTuple):
    """Limits in seconds for a kind of node to boot or end, and to greet; and the pause between attempts."""

    boot_s: float
    greeting_s: float
    pause_s: float


PATIENCE = Patience(60.0, 1.0, 0.02)


def ssh_command(address: str, user: str, lab_folder: Path) -> list[str]:
    """Return the command that opens a shell on a node.

    Args:
        lab_folder: folder of the lab's key pair and known hosts.
    """
    options = {"UserKnownHostsFile": str(lab_folder / "known_hosts"), **OPTIONS}
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-i", str(lab_folder / "id_ed25519"), "-l", user, "-F", "none", *words, address]


def greets(address: str, timeout: float) -> bool:
    """Return whether an SSH server answers at an address within `timeout` seconds."""
    try:
        with socket.create_connection((address, 22), timeout) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
