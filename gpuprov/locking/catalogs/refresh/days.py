"""Days of drivers: NVIDIA's rpm packages state when they were built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuprov.catalog import Catalog, Version
from gpuprov.locking.catalogs.refresh.proposal import Document, Proposal
from gpuprov.locking.catalogs.refresh.seen import Reading, Seen

BUILT = "built"
"""Name of the day among the details of what was seen."""


def propose_days(
    proposal: Proposal,
    catalog: Catalog,
    reading: Reading,
    held: Mapping[Version, Iterable[Seen]],
    day: str,
) -> None:
    """Propose a day for each driver of one branch that has none: the first on which a package was built.

    The vendor publishes a driver on that day or later, and cannot have built it against a newer kernel. A day
    after that of the reading is left out.
    """
    number = next(iter(held)).major
    record = catalog.driver_dates.get(number)
    known = record.released if record else {}
    found: dict[Version, str] = {}
    for release, seen in held.items():
        days = [each.details[BUILT] for each in seen if BUILT in each.details and each.details[BUILT] <= day]
        if days and release not in known:
            found[release] = min(days)
    if not found:
        return
    released = {str(each): of for each, of in sorted({**known, **found}.items(), key=lambda it: it[0].parts)}
    why = f"packages of {', '.join(map(str, found))} were built on {', '.join(found.values())}"
    if record:
        proposal.set(("drivers", "release_dates", str(number)), ("released", released), why, reading.source)
        return
    new: Document = {"branch": number, "released": released, "source": [reading.source]}
    proposal.add("drivers", "release_dates", new, why, reading.source)
