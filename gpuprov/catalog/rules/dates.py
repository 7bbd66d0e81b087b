"""Rules of days: a driver that was published before a kernel was not built against it by its vendor.

The vendor changes a driver's modules for each new kernel, so an older release builds on one only if nothing
that it uses was changed. Sources: `release_dates` and `kernel_dates` of the drivers' file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.records import KernelDate, ModuleDates, System
from gpuprov.catalog.rules.issues import kernel_version
from gpuprov.catalog.version import Version

OF_RHEL = re.compile(r"\.el[0-9]+(?:_[0-9]+)?(?:\.|\Z)", re.ASCII)
"""The end of RHEL's builds and those of its rebuilds, but not of Oracle's own kernel (`el9uek`)."""
UPSTREAM = 3
"""Numbers of an upstream version before RHEL's build: 5.14.0."""
TWO = 2
"""Numbers of a release on the main line of its branch, such as 550.100; 550.90.12 and others have three."""


@dataclass(frozen=True, slots=True)
class Day:
    """The day of a driver's release, in ISO format."""

    day: str
    exact: bool
    """False: the release is not younger, as a later one of its branch is of that day."""
    source: tuple[str, ...]

    def __str__(self) -> str:
        return self.day if self.exact else f"{self.day} or earlier"


def kernel_day(catalog: Catalog, uname: str) -> KernelDate | None:
    """Return the newest dated series, or minor release of RHEL, that is not newer than a kernel.

    The kernel itself is of that day or later. None if it does not begin with a version, or is older than all.
    """
    kernel = kernel_version(uname)
    if kernel is None:
        return None
    rows: tuple[KernelDate, ...] = catalog.tables["drivers.kernel_dates"]
    builds = [row for row in rows if len(row.first.parts) > UPSTREAM]
    if OF_RHEL.search(uname):
        of_rhel = [row for row in builds if row.first.parts[:UPSTREAM] == kernel.parts[:UPSTREAM]]
        if before := [row for row in of_rhel if row.first <= kernel]:
            return max(before, key=lambda row: row.first)
    before = [row for row in rows if len(row.first.parts) <= UPSTREAM and row.first <= kernel]
    return max(before, key=lambda row: row.first, default=None)


def system_day(catalog: Catalog, system: System) -> KernelDate | None:
    """Return the dated series of the kernel with which a system came; of RHEL, its first minor release.

    All its later kernels are of that day or later. None if the kernel or its day is not known.
    """
    if system.kernel is None:
        return None
    rows: tuple[KernelDate, ...] = catalog.tables["drivers.kernel_dates"]
    of_rhel = [row for row in rows if len(row.first.parts) > UPSTREAM and row.first.within(system.kernel)]
    if system.manager == "dnf" and of_rhel:  # others have RHEL's upstream version, too: Debian 13 has 6.12
        return min(of_rhel, key=lambda row: row.first)
    return kernel_day(catalog, str(system.kernel))


def driver_day(catalog: Catalog, driver: Version) -> Day | None:
    """Return the day of a driver's release; of an undated one, a day on which it was already published.

    That is the day of the next release, if it has the same two numbers or the driver has no third one; else
    the last day of the later ones of its branch: one with a third number can be younger than a higher number
    (550.90.12 than 550.100). None if none is dated.
    """
    record = catalog.driver_dates.get(driver.major)
    if record is None:
        return None
    if driver in record.released:
        return Day(record.released[driver], True, record.source)
    later = {each: day for each, day in record.released.items() if each > driver}
    near = [each for each in later if len(driver.parts) <= TWO or each.within(driver.minor)]
    if near:
        return Day(later[min(near)], False, record.source)
    return Day(max(later.values()), False, record.source) if later else None


def module_day(catalog: Catalog, component: str, release: Version) -> Day | None:
    """Return the day at which a release of a module was published at the latest; None if it is not known.

    Of an undated one, the day of the next release with the same two numbers: others can be updates of an
    older branch.
    """
    rows: tuple[ModuleDates, ...] = catalog.tables["drivers.module_dates"]
    for record in (row for row in rows if row.component == component):
        near = (each for each in record.released if each >= release and each.within(release.minor))
        if (found := min(near, default=None)) is not None:
            return Day(record.released[found], False, record.source)
    return None


def younger(catalog: Catalog, driver: Version, day: str) -> list[Version]:
    """Return the later releases of a driver's branch that were published on a day or after it, in order."""
    record = catalog.driver_dates.get(driver.major)
    released = record.released if record else {}
    return sorted(each for each, published in released.items() if each > driver and published >= day)
