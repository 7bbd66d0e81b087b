"""Variables of `storage`."""

from __future__ import annotations

from typing import Any

from gpuprov.expectations.storage import clients
from gpuprov.model.lock import LockedGroup


def storage(group: LockedGroup) -> dict[str, Any]:
    """The scratch file systems, and packages of clients."""
    return {"storage_scratch": list(group.setting("scratch") or []), "storage_clients": clients(group)}
