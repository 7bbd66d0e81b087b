"""What a node is, and that its package manager is in order."""

from __future__ import annotations

from gpuprov.expectations.statement import Expectation
from gpuprov.model.lock import LockedGroup


def system(group: LockedGroup) -> list[Expectation]:
    """The system that was locked."""
    return [
        Expectation("system.os", group.os, None),
        Expectation("system.arch", group.arch, None),
        Expectation("dpkg.consistent", [], "preflight"),
    ]
