"""Checks for outdated facts: the catalog's age, ends of life since then, and a lock with an older catalog."""

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
"""Maximum age in days of a catalog that counts as current. NVIDIA publishes a driver every few weeks: three
to seven between two releases of a branch (`drivers.json`, `known_versions`).
"""


@dataclass(frozen=True, slots=True)
class Stale:
    """One outdated fact.

    Attributes:
        what: `age`, `end-of-life`, `lock`, `index`, `security`.
        text: description of the fact.
        do: command that corrects it.
    """

    what: str
    text: str
    do: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def stale(catalog: Catalog, release: Release, lock: Lock | None, today: date) -> Iterator[Stale]:
    """Yield the outdated facts of a catalog by the date and by a lock, without access to repositories.

    These are an age over `FRESH_DAYS`, branches that reached their end of life after the catalog's date, and
    a lock that pins another release or none.

    Args:
        release: release of the catalog.
        lock: lock of a fleet, or None.
    """
    days = (today - date.fromisoformat(catalog.as_of)).days
    if days > FRESH_DAYS:
        text = f"catalog {release} is of {catalog.as_of}, {days} days ago; expected at most {FRESH_DAYS}"
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
    """Yield an outdated fact if a lock pins no catalog, or another one than this release."""
    if lock.catalog is None:
        text = "the lock pins no catalog: the catalog of the installed gpuprov is used"
        yield Stale("lock", text, "gpuprov lock --upgrade")
    elif lock.catalog.sha256 != release.sha256:
        pinned = f"catalog {lock.catalog.version} (sha256 {lock.catalog.sha256[:12]}…)"
        way = "an older" if version(lock.catalog.version) < release.version else "another"
        text = f"the lock pins {way} {pinned}; the current one is {release}"
        yield Stale("lock", text, "gpuprov lock --upgrade")
