"""How a lab logs in to its nodes: one key, host keys checked, no configuration of anybody's."""

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
    # Debian 12 would pick sntrup761 first, which costs 0.1 s of processor time at each end.
    "KexAlgorithms": "^curve25519-sha256",
}


class Patience(NamedTuple):
    """Seconds that a kind of node may take to boot or end, and to greet; and the pause before it is asked."""

    boot_s: float
    greeting_s: float
    pause_s: float


PATIENCE = Patience(60.0, 1.0, 0.02)


def ssh_command(address: str, user: str, lab_folder: Path) -> list[str]:
    """Command line that opens a shell on a node.

    Args:
        lab_folder: where the lab's key pair and known hosts are.
    """
    options = {"UserKnownHostsFile": str(lab_folder / "known_hosts"), **OPTIONS}
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-i", str(lab_folder / "id_ed25519"), "-l", user, "-F", "none", *words, address]


def greets(address: str, timeout: float) -> bool:
    """Whether an SSH server answers at an address within so many seconds."""
    try:
        with socket.create_connection((address, 22), timeout) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
