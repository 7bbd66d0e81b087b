"""The site's own floors, as the lock states them."""

from __future__ import annotations

from collections.abc import Mapping

from gpuprov.accept.reference import Floor
from gpuprov.model.lock import Lock


def of_lock(lock: Lock) -> dict[str, dict[str, float]]:
    """Node → measurement → floor, of groups that state any."""
    stated = ((group, group.floors) for group in lock.groups.values())
    return {node: floors.stated() for group, floors in stated if floors for node in group.hosts}


def of_site(stated: Mapping[str, float], name: str) -> Floor | None:
    """The site's floor of a measurement; None where it states none."""
    return Floor(stated[name], stated[name], "the site's own") if name in stated else None
