"""Commands of a node that take long: a second shell runs them while the first tests use the other one.

Both fill one cache, so each command runs once. If the second shell cannot be opened, or a command fails in
it, the commands left run when their tests need them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.ssh.contained import contained
from gpuprov.verify.observers.nvidia_driver import DKMS

if TYPE_CHECKING:
    from gpuprov.verify.nodes import NodeUnderTest

LONG: dict[str, Callable[[NodeUnderTest, list[str]], list[str]]] = {
    "driver.dkms": lambda node, _: [node.backend.quote(DKMS, kernel) for kernel in node.kernels],
    "pins.files": lambda node, packages: node.host.package_files.long(packages),
    "pins.simulated": lambda node, packages: node.host.packages.long(packages),
}
"""Check → function of a node and the packages of its lock that returns its commands that take long.

None of them changes the node, or has a name that another command uses at the same time: not containers.
"""


class Ahead:
    """The second shell of a node, which begins at once."""

    def __init__(self, node: NodeUnderTest) -> None:
        self._node, self._shell = node, node.backend.shell.another()
        self._thread = threading.Thread(target=contained, args=(node.name, self._run), daemon=True)
        self._commands = contained(node.name, self._stated)
        self._thread.start()

    def _stated(self) -> list[str]:
        """Return the commands of the checks that the lock wants; raises as the node's observers do."""
        node, packages = self._node, self._node.group.components.packages()
        with node.processor_time.limited():
            return [each for check in LONG if check in node.wanted for each in LONG[check](node, packages)]

    def _run(self) -> None:
        """Run the commands until one fails, and end the shell; raises as `Shell.open` and
        `ShellBackend.remember`.
        """
        commands = [] if isinstance(self._commands, GpuprovError) else self._commands
        try:
            self._shell.open()
            for command in commands:
                if isinstance(self._node.backend.remember(command, self._shell), NodeFailed):
                    return
        finally:
            self._shell.close()

    def end(self) -> None:
        """End the shell, and wait for that."""
        while self._thread.is_alive():  # it may be about to start the shell
            self._shell.kill()
            self._thread.join(0.1)
