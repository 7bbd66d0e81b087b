"""A plugin of pytest: writes each passed test's seconds and the failed tests to the file in TESTS_SEEN."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

SECONDS: defaultdict[str, float] = defaultdict(float)
FAILED: set[str] = set()
OTHERS: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the seconds and the result of a part of a test."""
    SECONDS[report.nodeid] += report.duration
    if not report.passed:
        (FAILED if report.failed else OTHERS).add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write passed tests with their seconds, and failed ones, to the file that TESTS_SEEN names."""
    if not hasattr(session.config, "workerinput"):
        passed = {name: seconds for name, seconds in SECONDS.items() if name not in FAILED | OTHERS}
        seen = {"passed": passed, "failed": sorted(FAILED)}
        Path(os.environ["TESTS_SEEN"]).write_text(json.dumps(seen))
