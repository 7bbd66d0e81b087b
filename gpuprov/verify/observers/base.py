"""Base class of gpuprov's testinfra modules: a plain message for a failed command."""

from __future__ import annotations

from testinfra.modules.base import InstanceModule

from gpuprov.errors import NodeFailed


class Observed(InstanceModule):  # type: ignore[misc]
    """A module of testinfra for one host, with a method that requires a command to succeed."""

    def ask(self, command: str, *args: str) -> str:
        """Return the standard output of a command.

        Args:
            command: a shell command, in which each `%s` is replaced by a quoted argument.

        Raises:
            NodeFailed: its exit status is not 0; the message has the last line of its error output, or of its
                output.
        """
        answer = self.run(command, *args)
        if answer.succeeded:
            return str(answer.stdout)
        said = (answer.stderr or answer.stdout).strip().splitlines()[-1:] or ["no message"]
        raise NodeFailed(f"`{answer.command.decode()}` ended with status {answer.rc}: {said[0]}")
