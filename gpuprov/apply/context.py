"""What every function of a run needs: the lock, where the run writes, how it works and what it may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprov.apply.afterboot import Afterwards
from gpuprov.apply.leases import Leases
from gpuprov.model.lock import Lock

Event = dict[str, Any]
"""One line of our Ansible callback: host, role, task, status and what was said."""
Listener = Callable[[Event], None]
Narrator = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What a person may say about how nodes are reached and how Ansible runs."""

    forks: int = 50
    check: bool = False
    diff: bool = False
    verbosity: int = 0
    become_password: str | None = None


@dataclass(frozen=True)
class Consent:
    """What the operator allows beyond changing packages and files."""

    reboot: bool = False
    downgrade: bool = False
    force: bool = False
    guard_s: int = 180
    """Seconds until a node takes back a change of SSH or firewall that no new login has proved."""


def _ignore(_: object) -> None:
    """Hear nothing."""


@dataclass(frozen=True)
class RunContext:
    """A run that brings nodes to a lock.

    Attributes:
        lock: what nodes are brought to.
        folder: gets all that the run saw and did; its name is the run's id.
        leases: those of the run's nodes; None where nothing is changed, or no one else can be at work.
        listen: called with every event of Ansible's as it happens.
        narrate: gets a line for a person at each turn.
        afterwards: how the run goes on after a reboot of this machine; None where it does not.
    """

    lock: Lock
    folder: Path
    options: Options = Options()
    consent: Consent = Consent()
    listen: Listener = _ignore
    narrate: Narrator = _ignore
    leases: Leases | None = None
    afterwards: Afterwards | None = None

    @property
    def id(self) -> str:
        """The run's id."""
        return self.folder.name
