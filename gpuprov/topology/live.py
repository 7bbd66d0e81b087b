"""The topology matrix of a live node."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from gpuprov.errors import InvalidInput, NodeFailed
from gpuprov.topology.matrix import Topology, driver_error, parse_topology

if TYPE_CHECKING:
    from gpuprov.probe.collect import CommandRunner

COMMAND = "nvidia-smi topo -m"
TIMEOUT_S = 60


def ask_matrix(session: CommandRunner) -> str:
    """Return the output of nvidia-smi, or the error message if there is no output."""
    answer = session.run(COMMAND)
    return (answer.stdout if answer.stdout.strip() else answer.stderr).decode(errors="replace")


def matrix_here() -> str:
    """Run nvidia-smi's matrix on this machine; return its output, or its errors if there is no output.

    Raises:
        NodeFailed: nvidia-smi is missing or does not answer in `TIMEOUT_S`.
    """
    try:
        done = subprocess.run(COMMAND.split(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise NodeFailed("nvidia-smi: not found on this machine", do="install the driver first") from None
    except subprocess.TimeoutExpired:
        raise NodeFailed(
            f"`{COMMAND}` did not answer in {TIMEOUT_S} s",
            do="look in `dmesg` for a lost GPU",
        ) from None
    return done.stdout or done.stderr


def topology_of(session: CommandRunner) -> Topology | None:
    """Return the node's topology; None without a driver, or if its matrix cannot be parsed."""
    text = ask_matrix(session)
    if not text.strip() or driver_error(text):
        return None
    try:
        return parse_topology(text)
    except InvalidInput:  # a matrix of unknown format is treated as a missing driver
        return None
