"""From fleet.yml, the catalog and the repositories' own indexes to the lock."""

from __future__ import annotations

from gpuprov.locking.build import build_lock
from gpuprov.locking.changes import changes
from gpuprov.locking.wanted import MOVABLE

__all__ = ["MOVABLE", "build_lock", "changes"]
