"""pytest plugin: runs each file with a failed test once more, whole and on new nodes, after all others.

Tests that pass then are counted and listed separately. A file that does not pass completely at its second try
keeps the failures of its first.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator

import pytest

AT_SECOND_TRY = "at the second try"
MOST_FILES = 3
"""Limit of failed files: more failures than this are not accidental."""


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Run failed files again, each in its own process."""
    result = yield
    if not hasattr(session.config, "workerinput"):
        _try_again(session)
    return result


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Return the category of a test that passed at the second try, for the last line; None for others."""
    return (AT_SECOND_TRY, "2", AT_SECOND_TRY.upper()) if hasattr(report, "first_try") else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """List the tests that passed at the second try before the last line."""
    result = yield
    for report in terminalreporter.stats.get(AT_SECOND_TRY, []):
        terminalreporter.write_line(f"passed at the second try: {report.nodeid}")
    return result


def _try_again(session: pytest.Session) -> None:
    """Run each file with a failed test once more, and forgive its failures if that passes; nothing if more
    than `MOST_FILES` files failed.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    failures = defaultdict(list)
    for report in [*reporter.stats.get("failed", []), *reporter.stats.get("error", [])]:
        failures[report.nodeid.partition("::")[0]].append(report)
    if len(failures) > MOST_FILES:
        return
    for file, reports in failures.items():
        for report in reports:
            reporter.write_sep("_", f"first try of {report.nodeid}")
            reporter.write_line(report.longreprtext)
        reporter.write_sep("_", f"second try of {file}")
        command = [sys.executable, "-m", "pytest", "-m", session.config.option.markexpr, file]
        again = subprocess.run(
            command, cwd=session.config.rootpath, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        reporter.write_line(again.stdout)
        if again.returncode == 0:
            _forgive(session, reporter, reports)


def _forgive(
    session: pytest.Session, reporter: pytest.TerminalReporter, reports: list[pytest.TestReport]
) -> None:
    """Remove failures from the report and from the session's result."""
    for kind in ("failed", "error"):
        reporter.stats[kind] = [each for each in reporter.stats.get(kind, []) if each not in reports]
    session.testsfailed -= len(reports)
    for report in {report.nodeid: report for report in reports}.values():
        passed = copy.copy(report)
        passed.outcome, passed.longrepr, passed.first_try = "passed", None, report  # type: ignore[attr-defined]
        session.config.hook.pytest_runtest_logreport(report=passed)
