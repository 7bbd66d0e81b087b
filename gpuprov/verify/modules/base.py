"""What our modules add to testinfra's own: a plain sentence for a command that does not work."""

from __future__ import annotations

from testinfra.modules.base import InstanceModule

from gpuprov.errors import NodeFailed


class Observed(InstanceModule):  # type: ignore[misc]
    """A module that a host has once."""

    def ask(self, command: str, *args: str) -> str:
        """Standard output of a command.

        Raises:
            NodeFailed: it ended with another status than 0.
        """
        answer = self.run(command, *args)
        if answer.succeeded:
            return str(answer.stdout)
        said = (answer.stderr or answer.stdout).strip().splitlines()[-1:] or ["nothing"]
        raise NodeFailed(f"`{answer.command.decode()}` ended with status {answer.rc} and said: {said[0]}")
