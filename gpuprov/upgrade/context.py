"""Context of an upgrade's steps: both locks, the run's folder, connection options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpuprov.apply.context import Consent, RunContext
from gpuprov.files.runs import make_folder
from gpuprov.files.writing import make_folders, replace_file
from gpuprov.model.lock import Lock, LockedGroup, Reboots, read_lock, write_lock
from gpuprov.model.rollout import Rollout

OLD, NEW = "old.lock.yml", "new.lock.yml"
RECORDS = "lastgood"
FLEET = "fleet"
"""Name of the file with the path of the new lock's fleet, and that of the old one's if it is another."""


@dataclass(frozen=True, kw_only=True)
class UpgradeContext(RunContext):
    """A run between two locks; `lock` is the new one.

    Attributes:
        old: the present lock of the nodes, which a failed node returns to.
        source: the folder of the run whose records are restored: this run, or for a rollback the run that it
            undoes.
    """

    old: Lock
    source: Path

    def toward(self, lock: Lock, folder: Path) -> RunContext:
        """Return the context of one step, with its lock and its folder."""
        consent = Consent(downgrade=True)  # the gate showed both versions: older ones are intended
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
        """The rollout rules of the new lock."""
        return self.lock.rollout or Rollout()

    @cached_property
    def groups(self) -> dict[str, tuple[LockedGroup, LockedGroup]]:
        """Node → its group in the old lock and in the new one, for the nodes that are in both."""
        old, new = self.old.hosts(), self.lock.hosts()
        return {name: (old[name], new[name]) for name in old if name in new}


def pack(run: Path, old: Lock, new: Lock) -> None:
    """Create the run's folder with copies of both locks, their fleet's path and a folder of records, to
    resume the run from.

    Raises:
        OSError: it exists already, or cannot be written.
    """
    make_folder(run)
    write_lock(old, run / OLD)
    write_lock(new, run / NEW)
    if fleets := dict.fromkeys(str(each.fleet) for each in (new, old) if each.fleet):
        replace_file(run / FLEET, "\n".join(fleets))
    make_folders(run / RECORDS)


def unpack(run: Path) -> tuple[Lock, Lock]:
    """Return the old and the new lock that a run was started with.

    Raises:
        InvalidInput: they do not exist any more.
    """
    old, new = read_lock(run / OLD), read_lock(run / NEW)
    if not (run / FLEET).exists():
        return old, new
    fleet = Path((run / FLEET).read_text().split("\n")[0])
    return old.of_fleet(fleet), new.of_fleet(fleet)


def is_of_fleet(run: Path, fleet: Path | None) -> bool:
    """Return whether a run belongs to a fleet; True also if `fleet` is None or the run states none.

    Names of nodes do not tell: several fleets of one controller can have a gpu01.
    """
    try:
        return fleet is None or str(fleet) in (run / FLEET).read_text().split("\n")
    except FileNotFoundError:
        return True


def rebooting(lock: Lock, *, together: int) -> Lock:
    """Return the lock with permission to reboot `together` nodes at a time; 0 allows no reboot."""
    groups = {}
    for name, group in lock.groups.items():
        reboot = Reboots(allowed=together > 0, batch=max(together, 1), timeout_s=group.reboot.timeout_s)
        groups[name] = group.model_copy(update={"reboot": reboot})
    return lock.model_copy(update={"groups": groups})
