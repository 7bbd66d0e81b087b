"""Text and JSON of repairs: the plan, the result, the journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuprov.model.nodeset import fold
from gpuprov.report.upgrade import entry_lines, outcome_lines
from gpuprov.untrusted import on_one_line
from gpuprov.upgrade.repair.header import RepairHeader
from gpuprov.upgrade.repair.ladder import LADDERS, Patient
from gpuprov.upgrade.repair.state import End
from gpuprov.upgrade.running import Outcome
from gpuprov.upgrade.state import Entry

ENDS = {
    "mended": "mended, in service",
    "out": "STAYS OUT OF SERVICE",
    "busy": "in use, left as it was",
    "left": "not treated",
}
STEPS = {"reset": "reset of {gpus}", "reboot": "reboot", "power": "power cycle"}
FAULTS = 3
"""Most faults of a node that the plan names."""


def repair_plan_lines(patients: Mapping[str, Patient], at_once: int, away: Sequence[str]) -> Iterator[str]:
    """Yield the verdicts with their faults and rungs, equal ones on one line, then the limit of nodes, if any
    is treated or stays out.
    """
    alike: dict[str, list[str]] = defaultdict(list)
    for node, each in patients.items():
        alike[_line(each)].append(node)
    for line, names in alike.items():
        yield f"{fold(names)} {line}"
    treated = sum(bool(each.rungs or each.stays) for each in patients.values())
    if treated:
        left = f"; {fold(away)} is out already" if away else ""
        yield f"{treated} of {len(patients)} nodes, at most {at_once} out of service at a time{left}"


def _line(each: Patient) -> str:
    """Return a node's verdict, what would be done, and its first `FAULTS` faults."""
    if each.stays:
        what = f"drain, then it stays out: {each.stays}"
    elif each.rungs:
        what = ", then ".join(["drain", *(_rung(rung, each) for rung in each.rungs)])
    else:
        what = "nothing"
    faults = [on_one_line(text) for text in each.faults[:FAULTS]]
    more = len(each.faults) - FAULTS
    said = "; ".join(faults) + (f" and {more} more" if more > 0 else "")
    if each.verdict == "unknown" and each.unknown:
        said = "; ".join(filter(None, [said, f"could not judge: {', '.join(each.unknown[:FAULTS])}"]))
    return f"{each.verdict}: {what}" + (f"  ({said})" if said else "")


def _rung(rung: str, each: Patient) -> str:
    """Return a rung in words."""
    count = len(each.gpus)
    return STEPS[rung].format(gpus=f"{count} GPU{'s' * (count != 1)}")


def repair_plan_document(
    patients: Mapping[str, Patient], at_once: int, away: Sequence[str], window_open: bool
) -> dict[str, Any]:
    """Return a document of the schema gpuprov.repair-plan/1."""
    return {
        "schema": "gpuprov.repair-plan/1",
        "window_open": window_open,
        "at_once": at_once,
        "out": list(away),
        "ladders": {verdict: list(rungs) for verdict, rungs in LADDERS.items()},
        "nodes": [{"name": node, **each.as_dict()} for node, each in patients.items()],
    }


def repair_outcome_lines(outcome: Outcome[End]) -> Iterator[str]:
    """Return the end of every node of a repair, see `outcome_lines`; a reason is one line."""
    reasons: dict[str, str] = {node: on_one_line(reason) for node, reason in outcome.reasons.items()}
    return outcome_lines(replace(outcome, reasons=reasons), ENDS)


def repair_outcome_document(run: str, outcome: Outcome[End]) -> dict[str, Any]:
    """Return a document of the schema gpuprov.repair/1."""
    nodes = [
        {"name": node, "end": end, "reason": outcome.reasons.get(node)} for node, end in outcome.ends.items()
    ]
    return {"schema": "gpuprov.repair/1", "run": run, "nodes": nodes, "stopped": outcome.stopped}


def repair_journal_lines(about: RepairHeader, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the steps of a repair from its journal, as those of an upgrade."""
    yield f"{entries[0].at}  started by {about.who}: repair, {len(about.patients)} nodes"
    for node, each in about.patients.items():
        yield f"{entries[0].at}  {node} {_line(each)}"
    yield from entry_lines(entries, len(about.patients))
