"""Variables of `repositories`."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup


def repositories(group: LockedGroup) -> dict[str, Any]:
    """Every repository of the lock, with its key."""
    return {
        "repositories_sources": [
            {"id": name, **repository.model_dump(exclude={"source"})}
            for name, repository in group.repositories.items()
        ]
    }
