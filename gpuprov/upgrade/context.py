"""What every step of an upgrade needs to know: both locks, the run's folder, how to reach nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpuprov.apply.context import Consent, RunContext
from gpuprov.model.lock import Lock, LockedGroup, Reboots, read_lock, write_lock
from gpuprov.model.rollout import Rollout
from gpuprov.runs import make_folder
from gpuprov.writing import replace_file

OLD, NEW = "old.lock.yml", "new.lock.yml"
RECORDS = "lastgood"
FLEET = "fleet"
"""A file with the path of the fleet that both locks are of."""


@dataclass(frozen=True, kw_only=True)
class UpgradeContext(RunContext):
    """A run between two locks; `lock` is the new one.

    Attributes:
        old: where nodes come from, and where a failed one goes back to.
        source: the folder of the run whose records lead back: this one, or for a rollback the one that is
            undone.
    """

    old: Lock
    source: Path

    def toward(self, lock: Lock, folder: Path) -> RunContext:
        """The run of one step, to a lock, with a folder of the step's own."""
        consent = Consent(downgrade=True)  # the gate showed both versions; a lock of older ones is meant
        return RunContext(
            lock,
            folder,
            self.options,
            consent,
            self.listen,
            self.narrate,
            self.leases,
            self.afterwards,
        )

    @cached_property
    def rollout(self) -> Rollout:
        """The rules: those of the lock that is rolled out."""
        return self.lock.rollout or Rollout()

    @cached_property
    def groups(self) -> dict[str, tuple[LockedGroup, LockedGroup]]:
        """Node → its group in the old lock and in the new one, of the nodes that are in both."""
        old, new = self.old.hosts(), self.lock.hosts()
        return {name: (old[name], new[name]) for name in old if name in new}


def pack(run: Path, old: Lock, new: Lock) -> None:
    """Make the run's folder, with both locks and the path of their fleet: it can be resumed without these."""
    make_folder(run)
    write_lock(old, run / OLD)
    write_lock(new, run / NEW)
    if new.fleet:
        replace_file(run / FLEET, str(new.fleet))
    (run / RECORDS).mkdir()


def unpack(run: Path) -> tuple[Lock, Lock]:
    """The locks that a run was started with, old and new.

    Raises:
        InvalidInput: they are not there any more.
    """
    old, new = read_lock(run / OLD), read_lock(run / NEW)
    if not (run / FLEET).exists():
        return old, new
    fleet = Path((run / FLEET).read_text())
    return old.of_fleet(fleet), new.of_fleet(fleet)


def rebooting(lock: Lock, *, together: int) -> Lock:
    """The lock with leave to reboot so many nodes at a time; with 0, none."""
    groups = {}
    for name, group in lock.groups.items():
        reboot = Reboots(allowed=together > 0, batch=max(together, 1), timeout_s=group.reboot.timeout_s)
        groups[name] = group.model_copy(update={"reboot": reboot})
    return lock.model_copy(update={"groups": groups})
