"""Text and JSON of the ledger of machines: who fails most, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpuprov.history.ledger import BY_NAME, Offender
from gpuprov.report.table import aligned

SCHEMA = "gpuprov.worst/1"
HEAD = ("SERIAL", "KIND", "NODE", "OUT", "FAULTS", "RESETS", "REBOOTS", "POWER", "MENDED", "REJECTED", "MOST")


def worst_lines(found: Sequence[Offender]) -> Iterator[str]:
    """Yield a table of machines, those that were out of service for longest first."""
    yield from aligned([HEAD, *map(_cells, found)])


def worst_document(found: Sequence[Offender], since: str) -> dict[str, Any]:
    """Return a document of the schema gpuprov.worst/1; `since` is empty if everything counts."""
    machines = [
        {
            "serial": None if each.key.startswith(BY_NAME) else each.key,
            "kind": _kind(each),
            "nodes": each.nodes,
            "hours_out": round(each.out_s / 3600, 2),
            "is_out": each.is_out,
            "counts": each.counts,
            "rules": each.rules,
        }
        for each in found
    ]
    return {"schema": SCHEMA, "since": since or None, "machines": machines}


def _kind(each: Offender) -> str:
    """Return `GPU` or `node`."""
    return "GPU" if each.is_gpu else "node"


def _cells(each: Offender) -> list[str]:
    """Return the cells of one machine: serial number, kind, its last two names, hours out of service, counts,
    and its most frequent rule.
    """
    counts = each.counts
    hours = f"{each.out_s / 3600:.1f} h" + (" and on" if each.is_out else "")
    most = max(each.rules, key=lambda rule: each.rules[rule], default="-")
    names = ", ".join(each.nodes[-2:])
    numbers = [counts[kind] for kind in ("fault", "reset", "reboot", "power", "mended", "rejected")]
    serial = "-" if each.key.startswith(BY_NAME) else each.key
    return [serial, _kind(each), names, hours, *map(str, numbers), most]
