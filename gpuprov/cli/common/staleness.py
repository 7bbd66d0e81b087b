"""Says so where the lock is not the fleet's any more: people change fleet.yml and forget `gpuprov lock`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuprov.cli.common.options import warn
from gpuprov.errors import GpuprovError

if TYPE_CHECKING:
    from gpuprov.model.lock import Lock


def warn_if_stale(lock: Lock, lock_path: Path) -> None:
    """Warn where fleet.yml beside the lock, or one of its profiles, was changed since."""
    from gpuprov.locking.inputs import STALE, changed_since

    try:
        fleet = changed_since(lock, lock_path)
    except GpuprovError as error:
        return warn(str(error))
    if fleet:
        warn(f"{lock_path} {STALE.format(fleet=fleet)}; the lock counts until you run `gpuprov lock`")
    return None
