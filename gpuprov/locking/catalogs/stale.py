"""Checks for outdated facts: the catalog's age, ends of life since then, and a lock with an older catalog."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from gpuprov.catalog import Catalog
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.catalog.releases import Release
from gpuprov.catalog.rules.driver import end_of_life
from gpuprov.catalog.rules.issues import Host, build_outcome, concerns, kernel_version
from gpuprov.catalog.version import version
from gpuprov.model.lock import Lock, LockedGroup

SCHEMA = "gpuprov.catalog-check/1"
FRESH_DAYS = 45
"""Maximum age in days of a catalog that counts as current. NVIDIA publishes a driver every few weeks: three
to seven between two releases of a branch (`drivers.json`, `known_versions`).
"""


@dataclass(frozen=True, slots=True)
class Stale:
    """One outdated fact.

    Attributes:
        what: `age`, `end-of-life`, `lock`, `known-issue`, `index`, `security`.
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

    These are an age over `FRESH_DAYS`, branches that reached their end of life after the catalog's date, a
    lock that pins another release or none, and locked drivers that were withdrawn or that do not build
    against the locked kernel.

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
        for name, group in lock.groups.items():
            yield from _known_issues(catalog, name, group)


def _known_issues(catalog: Catalog, name: str, group: LockedGroup) -> Iterator[Stale]:
    """Yield a group's driver that was withdrawn, or whose module does not build against the locked kernel.

    A catalog that is newer than the lock's own can know it; without a locked kernel no build is judged.
    """
    driver, release = group.components.driver, version(group.components.driver.version)
    host = Host(group.os, group.arch, (find_gpu(catalog, group.hardware.gpu_model),))
    kernel = kernel_version(group.setting("kernel") or "")
    for issue in catalog.known_issues:
        if not concerns(issue, release, driver.module, host):
            continue
        if issue.kind == "withdrawn":
            text = f"{name}: driver {release} was withdrawn ({issue.condition}): {issue.effect}"
            yield Stale("known-issue", text, "gpuprov lock --upgrade driver")
        elif issue.kind == "build" and kernel and driver.compiled and build_outcome(issue, kernel) == "fails":
            text = f"{name}: driver {release} does not build against kernel {kernel}: {issue.effect}"
            yield Stale("known-issue", text, "gpuprov lock --upgrade driver")


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
