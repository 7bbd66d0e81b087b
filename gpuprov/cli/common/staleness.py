"""Warning of a lock that is older than its fleet, because `gpuprov lock` was forgotten after a change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuprov.cli.common.options import warn
from gpuprov.errors import GpuprovError

if TYPE_CHECKING:
    from gpuprov.model.lock import Lock


def warn_if_stale(lock: Lock, lock_path: Path) -> None:
    """Warn if the lock's fleet.yml, or one of its profiles, has changed since the lock was made.

    Files that cannot be read are also only a warning.
    """
    from gpuprov.locking.inputs import STALE, changed_since

    try:
        fleet = changed_since(lock, lock_path)
    except GpuprovError as error:
        return warn(str(error))
    if fleet:
        warn(
            f"{lock_path} {STALE.format(fleet=fleet)}; the lock is used as it is until you run `gpuprov lock`"
        )
    return None
