"""Context of a run: its lock, its folder, its options, and the operator's consent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprov.apply.afterboot import Afterwards
from gpuprov.apply.lease_manager import LeaseManager
from gpuprov.model.lock import Lock
from gpuprov.ssh.dispatch import DIRECT, Dispatch

Event = dict[str, Any]
"""One line of gpuprov's Ansible callback: host, role, task, status and message."""
Listener = Callable[[Event], None]
Narrator = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """Options for connections to nodes and for Ansible."""

    dispatch: Dispatch = DIRECT
    check: bool = False
    diff: bool = False
    verbosity: int = 0


@dataclass(frozen=True)
class Consent:
    """Permissions by the operator, beyond changes of packages and files."""

    reboot: bool = False
    downgrade: bool = False
    force: bool = False
    guard_s: int = 180
    """Seconds until a node reverts a change of SSH or firewall that no new login has confirmed."""


def _ignore(_: object) -> None:
    """Do nothing with the argument."""


@dataclass(frozen=True)
class RunContext:
    """A run that brings nodes to a lock.

    Attributes:
        lock: the declared state of the nodes.
        folder: the folder for all records of the run; its name is the run's id.
        leases: leases on the run's nodes; None if nothing is changed, or no other run is possible.
        listen: called with each of Ansible's events as it occurs.
        narrate: called with a line for the operator at each step.
        afterwards: continuation after a reboot of this machine; None if the run does not continue.
    """

    lock: Lock
    folder: Path
    options: Options = Options()
    consent: Consent = Consent()
    listen: Listener = _ignore
    narrate: Narrator = _ignore
    leases: LeaseManager | None = None
    afterwards: Afterwards | None = None

    @property
    def id(self) -> str:
        """The run's id."""
        return self.folder.name
