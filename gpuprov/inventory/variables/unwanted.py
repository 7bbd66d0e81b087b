"""What a component's packages are called where it shall not be there."""

from __future__ import annotations

from gpuprov.model.lock import LockedGroup


def unwanted(group: LockedGroup, name: str) -> list[str]:
    """Expressions of `name=version` for what shall not be there."""
    pattern = group.components.absent.get(name)
    return [f"{pattern}="] if pattern else []
