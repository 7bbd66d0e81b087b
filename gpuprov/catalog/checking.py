"""Checks of records against each other, when the catalog is loaded.

A single field is checked where it is read; a misprint in a bulletin shows only against its other fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.records import OF_A_BRANCH, AffectedRange, Bulletin
from gpuprov.errors import InvalidInput

CVE = re.compile(r"CVE-[0-9]{4}-[0-9]{4,7}")
HIGHEST_SCORE = 10


def check_dates(catalog: Catalog) -> None:
    """Check that the days of drivers and kernels are days, and that a driver's day is one of its branch.

    Raises:
        InvalidInput: one is not; the message names the row.
    """
    for record in catalog.tables["drivers.release_dates"]:
        for driver, day in record.released.items():
            if not _is_day(day) or driver.major != record.branch:
                raise InvalidInput(
                    f"drivers.json: release_dates[{record.branch}].released: {driver} of {day!r}",
                    expected=f"a version {record.branch}.…, and a day such as 2026-09-30",
                )
    for kernel in catalog.tables["drivers.kernel_dates"]:
        if not _is_day(kernel.released):
            raise InvalidInput(
                f"drivers.json: kernel_dates[{kernel.first}].released: {kernel.released!r}",
                expected="a day, such as 2026-09-30",
            )


def check_bulletins(catalog: Catalog) -> None:
    """Check that each bulletin can be true.

    Raises:
        InvalidInput: a day, a score or a CVE is not valid, a branch is unknown, or a fixed version is not of
            its branch or not newer than the affected ones. The message names the bulletin and the row.
    """
    for bulletin in catalog.bulletins.values():
        for seen, expected in wrong_bulletin(bulletin, catalog):
            raise InvalidInput(f"bulletins.json: bulletins[{bulletin.id}].{seen}", expected=expected)


def wrong_bulletin(bulletin: Bulletin, catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yield what is wrong in a bulletin: the field and the value seen, and what was expected."""
    yield from _wrong(bulletin)
    for index, row in enumerate(bulletin.affected):
        for seen, expected in (*wrong_branch(row, catalog), *wrong_versions(row)):
            yield f"affected[{index}]: {seen}", expected
        if unknown := sorted({*row.cves} - {*bulletin.cves}):
            yield f"affected[{index}].cves: {unknown[0]}", "a CVE of the bulletin"


def _wrong(bulletin: Bulletin) -> Iterator[tuple[str, str]]:
    """Yield what is wrong in a bulletin's own fields: the value seen, and what was expected."""
    for name in ("published", "updated"):
        day = getattr(bulletin, name)
        if day is not None and not _is_day(day):
            yield f"{name}: {day!r}", "a day, such as 2026-09-30"
    if bulletin.updated is not None and bulletin.updated < bulletin.published:
        yield f"updated: {bulletin.updated}", f"{bulletin.published}, when it was published, or later"
    if not 0 < bulletin.score <= HIGHEST_SCORE:
        yield f"score: {bulletin.score:g}", f"a CVSS base score, above 0 and at most {HIGHEST_SCORE}"
    for each in bulletin.cves:
        if not CVE.fullmatch(each):
            yield f"cves: {each!r}", "CVE-YEAR-NUMBER"
    if not bulletin.cves:
        yield "cves: none", "at least one CVE"


def _is_day(text: str) -> bool:
    """Return whether a text is a day in the form 2026-09-30."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def wrong_branch(row: AffectedRange, catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yield what is wrong in the branch of a row: the value seen, and what was expected; nothing if it is
    right.
    """
    if row.component not in OF_A_BRANCH:
        if row.branch is not None:
            yield f"{row.component} of branch {row.branch}", "no branch, which only drivers have"
        return
    if row.branch not in catalog.branches:
        known = ", ".join(map(str, catalog.branches))
        yield f"{row.component} of branch {row.branch}", f"one of {known}"
    for name in ("first", "last", "fixed"):
        version = getattr(row, name)
        if version is not None and version.major != row.branch:
            yield f"{row.component} of branch {row.branch}: {name} {version}", f"a version {row.branch}.…"


def wrong_versions(row: AffectedRange) -> Iterator[tuple[str, str]]:
    """Yield what is wrong in the versions of a row: the value seen, and what was expected."""
    if row.fixed is None and row.branch is None:
        yield f"{row.component} without a fixed version", "fixed: the first version with the fix"
    for name in ("first", "last"):
        version = getattr(row, name)
        if version is not None and row.fixed is not None and version >= row.fixed:
            yield (
                f"{row.component}: fixed in {row.fixed}, and {name} affected is {version}",
                f"a fixed version newer than {version}",
            )
    if row.first is not None and row.last is not None and row.last < row.first:
        yield f"{row.component}: affected from {row.first} to {row.last}", "the older version first"
