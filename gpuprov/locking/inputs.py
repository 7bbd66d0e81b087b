"""Inputs of a lock, read without a catalog to detect a stale lock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from gpuprov.locking.secure_boot import locked_secure_boot
from gpuprov.model.fleet import Fleet, read_fleet
from gpuprov.model.lock import Lock, lock_beside
from gpuprov.model.profile import ResolvedProfile
from gpuprov.model.secure_boot import LockedSecureBoot
from gpuprov.nccl.record import NcclRecord, read_record
from gpuprov.untrusted.within_limits import within_limits

STALE = "was not made from {fleet} and its profiles in their current state"


def digest(
    fleet: Fleet,
    profiles: Iterable[ResolvedProfile],
    network: NcclRecord | None,
    secure_boot: LockedSecureBoot | None,
) -> str:
    """Return `sha256:` and the hash of the fleet without the signing key, its profiles, the derived network
    and the Secure Boot certificate.
    """
    read = [*profiles, *([network] if network else []), *([secure_boot] if secure_boot else [])]
    # The key's path differs between controllers.
    said = hashlib.sha256(fleet.model_dump_json(exclude={"secure_boot": {"key"}}).encode())
    for each in read:
        said.update(b"\n" + each.model_dump_json().encode())
    return "sha256:" + said.hexdigest()


@within_limits()
def changed_since(lock: Lock, lock_path: Path) -> Path | None:
    """Return the fleet.yml next to a lock if the lock was made from another fleet or other profiles, else
    None.

    None also if no fleet.yml belongs to the lock.

    Raises:
        GpuprovError: the fleet or a profile cannot be read.
    """
    path = lock_path.with_name(lock_path.name.replace(".lock.yml", ".yml"))
    if lock_beside(path) != lock_path or not path.is_file():
        return None
    fleet, folder = read_fleet(path), path.parent
    profiles = fleet.profiles(folder).values()
    now = digest(fleet, profiles, read_record(path), locked_secure_boot(fleet.secure_boot, folder))
    return None if now == lock.inputs else path
