"""Variables of `storage`."""

from __future__ import annotations

from typing import Any

from gpuprov.lock import LockedGroup


def storage(group: LockedGroup) -> dict[str, Any]:
    """The scratch file systems."""
    return {"storage_scratch": list(group.setting("scratch") or [])}
