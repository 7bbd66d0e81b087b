"""What is stale: the catalog by its own days, and a lock that pins an older one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from gpuprov.catalog import Catalog
from gpuprov.catalog.releases import Release
from gpuprov.catalog.rules.driver import end_of_life
from gpuprov.catalog.version import version
from gpuprov.model.lock import Lock

SCHEMA = "gpuprov.catalog-check/1"
FRESH_DAYS = 45
"""NVIDIA ships a driver every few weeks: between two releases of a branch lie three to seven (`drivers.json`,
`known_versions`)."""


@dataclass(frozen=True, slots=True)
class Stale:
    """One thing that is no longer so.

    Attributes:
        what: `age`, `end-of-life`, `lock`, `index`.
        text: what was seen, for a person.
        do: what to type.
    """

    what: str
    text: str
    do: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def stale(catalog: Catalog, release: Release, lock: Lock | None, today: date) -> Iterator[Stale]:
    """What a calendar and a lock say against a catalog. No repository is asked.

    Args:
        release: which one the catalog is.
        lock: a fleet's, where there is one.
    """
    days = (today - date.fromisoformat(catalog.as_of)).days
    if days > FRESH_DAYS:
        text = f"catalog {release} speaks of {catalog.as_of}, {days} days ago; {FRESH_DAYS} is usual at most"
        yield Stale("age", text, "gpuprov catalog update")
    for branch in catalog.branches.values():
        if end_of_life(branch, today.isoformat()) and not end_of_life(branch, catalog.as_of):
            text = (
                f"driver branch {branch.branch} reached its end of life ({branch.eol}) since {catalog.as_of}"
            )
            yield Stale("end-of-life", text, "gpuprov catalog update")
    if lock:
        yield from _locked(lock, release)


def _locked(lock: Lock, release: Release) -> Iterator[Stale]:
    if lock.catalog is None:
        text = "the lock pins no catalog: gpuprov's own counts, whichever that is"
        yield Stale("lock", text, "gpuprov lock --upgrade")
    elif lock.catalog.sha256 != release.sha256:
        pinned = f"catalog {lock.catalog.version} (sha256 {lock.catalog.sha256[:12]}…)"
        way = "an older" if version(lock.catalog.version) < release.version else "another"
        text = f"the lock pins {way} one, {pinned}; here is {release}"
        yield Stale("lock", text, "gpuprov lock --upgrade")
