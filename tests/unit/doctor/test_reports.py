"""Public reports of faults that the doctor must name, as recorded machines (`scripts/campaign reports`
counts them).
"""

from __future__ import annotations

import pytest

from gpuprov.doctor.judge import RULES
from gpuprov.probe.node.kernel_messages import WANTED
from tests.unit.doctor.reports import LOOKED_AT, SETS, judged, reports

ALL = [(name, report) for name in SETS for report in reports(name)]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "report"), ALL, ids=[report.source.partition("//")[2] for _, report in ALL])
def test_a_report_is_not_wrong(name: str, report: object) -> None:
    from tests.unit.doctor.reports import Report

    assert isinstance(report, Report)
    result, faults = judged(report)
    assert result != "wrong", [(fault.rule, fault.text) for fault in faults]
    assert set(report.rules) | set(report.near) <= set(RULES)
    if name == LOOKED_AT:
        assert result == "named", [(fault.rule, fault.text) for fault in faults]


def test_the_probe_sends_the_lines_of_the_reports() -> None:
    lines = [line for _, report in ALL for line in report.changes.get("log", [])]
    assert [line for line in lines if not WANTED.search(line) and "PKCS#7" not in line] == []


def test_the_reports_have_addresses_and_are_counted_once() -> None:
    sources = [report.source for _, report in ALL]
    assert len(sources) == len(set(sources))
    assert all(source.startswith("https://") for source in sources)
