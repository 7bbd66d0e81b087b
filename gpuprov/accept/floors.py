"""The site's own floors, from the lock."""

from __future__ import annotations

from collections.abc import Mapping

from gpuprov.accept.reference import Floor
from gpuprov.model.lock import Lock


def of_lock(lock: Lock) -> dict[str, dict[str, float]]:
    """Return node → measurement → floor, only for nodes of groups that state floors."""
    stated = ((group, group.floors) for group in lock.groups.values())
    return {node: floors.stated() for group, floors in stated if floors for node in group.hosts}


def of_site(stated: Mapping[str, float], name: str) -> Floor | None:
    """Return the site's floor of a measurement, or None."""
    return Floor(stated[name], stated[name], "the site's own") if name in stated else None
