"""The matrix of a live node."""

from __future__ import annotations

from typing import Protocol

from gpuprov.errors import InvalidInput
from gpuprov.topology.matrix import Topology, driver_error, parse_topology

COMMAND = "nvidia-smi topo -m"


class Output(Protocol):
    """What a command answered."""

    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...


class Session(Protocol):
    """Anything that runs a command line in a login shell: `gpuprov.ssh.transport.Session`."""

    def run(self, command: str, stdin: bytes = b"") -> Output:
        """Run one command line to its end."""
        ...


def ask_matrix(session: Session) -> str:
    """What nvidia-smi prints, or what it or the shell complains of."""
    answer = session.run(COMMAND)
    return (answer.stdout if answer.stdout.strip() else answer.stderr).decode(errors="replace")


def topology_of(session: Session) -> Topology | None:
    """The node's matrix; None where there is no driver yet that could tell it, or none that we can read."""
    text = ask_matrix(session)
    if not text.strip() or driver_error(text):
        return None
    try:
        return parse_topology(text)
    except (
        InvalidInput
    ):  # a driver's answer of another shape: what needs it does without, as without a driver
        return None
