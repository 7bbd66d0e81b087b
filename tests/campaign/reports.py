"""Runs doctor on public reports of faults, recorded as machines, and on machines and logs without a fault.

    scripts/campaign reports [--markdown] [-v]

Reports of `tests/recorded/reports`: `looked-at.json` has those from which rules were made, `held-out.json`
those from which no rule was made before their first result was taken, `later.json`, `latest.json`,
`newest.json` and `sampled.json` further such sets, and `cases` what `scripts/catalog case` added. A report is
named if a rule of its cause comes first, near if it comes later or a neighbour comes first, silent without a
fault beyond hints, and wrong if another fault comes first. Exit 1 if a report is wrong, less than `LEAST` of
a set are named, or more than `ALARMS_AT_MOST` machines or logs without a fault are reported as broken or
degraded.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from gpuprov.doctor.judge import diagnose
from tests.unit.doctor.machines import HEALTHY, as_examined, bare_metal, log
from tests.unit.doctor.reports import RESULTS, SETS, healthy_logs, judged, reports

LEAST = 0.8
"""Least share of named reports in a set."""
ALARMS_AT_MOST = 0.02
"""Largest share of machines and logs without a fault that may be reported as broken or degraded."""
SICK = ("broken", "degraded")


@dataclass
class Row:
    """One set of reports, and the reports that are not named."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Number of reports."""
        return sum(self.counts.values())

    @property
    def bad(self) -> bool:
        """Whether a report is wrong, or too few are named."""
        return bool(self.counts["wrong"]) or self.counts["named"] < LEAST * self.total


def main() -> int:
    """Print the table of published reports and the false alarms; return 1 if a rate is not reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--markdown", action="store_true", help="print only the table, for docs/doctor.md")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="a line for each report that is not named"
    )
    wanted = parser.parse_args()
    began = time.monotonic()
    rows = [row for row in map(_row, SETS) if row.total]
    alarms, healthy = _alarms()
    print("\n".join(_table(rows)))
    if not wanted.markdown:
        for line in (*(line for row in rows for line in row.missed if wanted.verbose), *alarms):
            print(line)
        print(
            f"{healthy} machines and logs without a fault: {len(alarms)} reported; "
            f"{time.monotonic() - began:.0f} s"
        )
    return 1 if any(row.bad for row in rows) or len(alarms) > ALARMS_AT_MOST * healthy else 0


def _row(name: str) -> Row:
    """Return the results of one set."""
    row = Row(name.removesuffix(".json"))
    for report in reports(name):
        result, faults = judged(report)
        row.counts[result] += 1
        if result != "named":
            found = ", ".join(fault.rule for fault in faults[:4])
            row.missed.append(
                f"{result}: {report.source}: {' or '.join(report.rules)}; found: {found or 'nothing'}"
            )
    return row


def _table(rows: list[Row]) -> list[str]:
    """Return the table of the sets as Markdown."""
    lines = [f"| reports | number | {' | '.join(RESULTS)} |", f"|---|{'---|' * (1 + len(RESULTS))}"]
    for row in rows:
        counts = " | ".join(str(row.counts[each]) for each in RESULTS)
        lines.append(f"| {row.name} | {row.total} | {counts} |")
    return lines


def _alarms() -> tuple[list[str], int]:
    """Return a line for each machine or log without a fault that is reported as sick, and their number."""
    found = []
    for name, machine in HEALTHY.items():
        faults = [fault for fault in diagnose(as_examined(machine())).faults if fault.severity in SICK]
        found += [f"alarm: {name}: {fault.rule}: {fault.text}" for fault in faults[:1]]
    logs = healthy_logs()
    for source, lines in logs:
        result = bare_metal()
        log(result, *lines)
        faults = [fault for fault in diagnose(as_examined(result)).faults if fault.severity in SICK]
        found += [f"alarm: {source}: {fault.rule}: {fault.text}" for fault in faults[:1]]
    return found, len(HEALTHY) + len(logs)


if __name__ == "__main__":
    sys.exit(main())
