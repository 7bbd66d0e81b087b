"""A node whose observations a campaign prints with a verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gpuprov_lab import Lab, Node


@dataclass
class Watched:
    """A node, the folder with its fleet and locks, and the observations that are wrong."""

    lab: Lab
    node: Node
    folder: Path
    wrong: list[str] = field(default_factory=list)

    def saw(self, what: str, seen: object, *, fine: bool) -> None:
        """Print an observation and its verdict."""
        lines = str(seen).strip().splitlines() or ["nothing"]
        result = "\n      ".join(lines if len(lines) == 1 else ["", *lines])
        print(f"{'ok ' if fine else 'BAD'} {what}: {result}", flush=True)
        if not fine:
            self.wrong.append(what)

    def says(self, command: str, *, timeout: float = 1800) -> str:
        """Return the output of a command on the node, regardless of its exit status."""
        done = self.node.run(command, check=False, timeout=timeout)
        return (done.stdout + done.stderr).strip()
