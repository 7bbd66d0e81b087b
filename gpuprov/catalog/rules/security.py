"""Rules of security bulletins: which of them concern a version, and which version fixes them.

Source: NVIDIA's security bulletins, one row for each fixed branch of a driver. "Earlier software branch
releases that support these products might also be affected": a branch without a row is a branch without a
known fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.records import OF_A_BRANCH, AffectedRange, Bulletin
from gpuprov.catalog.version import Version, version


@dataclass(frozen=True, slots=True)
class Affected:
    """One bulletin that concerns a version.

    Attributes:
        cves: those of its CVEs that the version has.
        fixed: the first version with all fixes, of a driver on its branch; None if no fix is known.
    """

    bulletin: Bulletin
    cves: tuple[str, ...]
    fixed: Version | None


def upstream(text: str) -> Version | None:
    """Return the upstream version at the start of a component's: 2.29.7 of `2.29.7+cuda13.2`; None if it does
    not begin with two to five numbers.
    """
    match = re.match(r"[0-9]{1,6}(?:\.[0-9]{1,6}){1,4}(?![0-9.])", text)
    return version(match[0]) if match else None


def affected(catalog: Catalog, component: str, release: Version) -> tuple[Affected, ...]:
    """Return the bulletins that concern a version of a component, oldest first.

    Empty for a component that no bulletin is about. A release of a driver branch without a row is affected if
    the branch was released before the bulletin; a newer branch has the fixes.
    """
    memo: dict[tuple[str, Version], tuple[Affected, ...]] = catalog.memo.setdefault("affected", {})
    if (component, release) not in memo:
        found = (_judged(catalog, each, component, release) for each in catalog.bulletins.values())
        memo[component, release] = tuple(each for each in found if each)
    return memo[component, release]


def _judged(catalog: Catalog, bulletin: Bulletin, component: str, release: Version) -> Affected | None:
    """Return how a bulletin concerns a version; None if it does not.

    For a component with branches only rows of the version's branch count; a branch that ended before the
    bulletin is concerned without a fix. The fix is the highest of the rows, None if a row has none.
    """
    rows = [row for row in bulletin.affected if row.component == component]
    if component in OF_A_BRANCH:
        own = [row for row in rows if row.branch == release.major]
        if rows and not own and _before(catalog, release.major, bulletin):
            return Affected(bulletin, bulletin.cves, None)
        rows = own
    rows = [row for row in rows if _within(row, release)]
    if not rows:
        return None
    named = {cve for row in rows for cve in row.cves or bulletin.cves}
    fixes = [row.fixed for row in rows]
    fixed = max((each for each in fixes if each), default=None) if None not in fixes else None
    return Affected(bulletin, tuple(cve for cve in bulletin.cves if cve in named), fixed)


def _within(row: AffectedRange, release: Version) -> bool:
    """Return whether a version is in the affected range of a row."""
    if row.first is not None and release < row.first:
        return False
    if row.fixed is not None:
        return release < row.fixed
    return row.last is None or release <= row.last


def _before(catalog: Catalog, branch: int, bulletin: Bulletin) -> bool:
    """Return whether a driver branch was released before a bulletin; False if its record does not tell.

    Some records have only a month or a year: one that contains the bulletin's day does not tell.
    """
    record = catalog.branches.get(branch)
    if record is None:
        return False
    released = record.first_release_linux
    return released < bulletin.published[: len(released)]


def same_line(component: str, one: Version, other: Version) -> bool:
    """Return whether two versions are of the same line: a driver's branch, a CUDA major, a library's major.

    The container toolkit has one line only.
    """
    return component == "container_toolkit" or one.major == other.major


@dataclass(frozen=True, slots=True)
class Exposure:
    """A version of a component that bulletins concern.

    Attributes:
        version: as the lock or the node states it.
        release: its upstream version.
        nearest: the oldest newer version of the same line that no bulletin concerns; None if not known.
    """

    component: str
    version: str
    release: Version
    found: tuple[Affected, ...]
    nearest: Version | None

    @property
    def unfixed(self) -> tuple[Affected, ...]:
        """The bulletins that no known version of the same line fixes."""
        line = (self.component, self.release)
        return tuple(each for each in self.found if each.fixed is None or not same_line(*line, each.fixed))


def exposure(catalog: Catalog, component: str, text: str) -> Exposure | None:
    """Return the bulletins that concern a component's version, with the nearest fix; None if none does.

    Args:
        text: its version as the lock or the node states it: `4.5.2`, `2.29.7+cuda13.2`.
    """
    release = upstream(text)
    found = affected(catalog, component, release) if release else ()
    if not release or not found:
        return None
    return Exposure(component, text, release, found, nearest_fixed(catalog, component, release))


def nearest_fixed(catalog: Catalog, component: str, release: Version) -> Version | None:
    """Return the oldest newer version of the same line that no bulletin concerns; None if not known.

    Versions are those of the catalog's lists and those that bulletins name as fixed.
    """
    named = {each.fixed for each in affected(catalog, component, release) if each.fixed}
    newer = {
        each
        for each in (*named, *_known(catalog, component, release))
        if each > release and same_line(component, each, release)
    }
    return min((each for each in newer if not affected(catalog, component, each)), default=None)


def _known(catalog: Catalog, component: str, release: Version) -> Iterable[Version]:
    """Return the versions of a component in the catalog's lists, of drivers those of the release's branch; ()
    for an unknown one.
    """
    if component in OF_A_BRANCH:
        branch = catalog.branches.get(release.major)
        return branch.known_versions if branch else ()
    lists: dict[str, Iterable[Version]] = {
        "cuda": (each.version for each in catalog.released_toolkits),
        "container_toolkit": (each.version for each in catalog.container_toolkits),
        "cudnn": catalog.cudnn_by_version,
        "nccl": catalog.nccl_by_version,
    }
    return lists.get(component, ())
