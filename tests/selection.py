"""pytest plugin: the tests that `scripts/test` runs without --all, and the order of the files.

Without --all these are the unit tests that are not thorough, and the node tests of the main promises and of
the roles that the working tree changes. Files run longest first, by the durations that
`scripts/test --all --store-durations` measured.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests import ROOT

TESTS = ROOT / "tests"
NODE_TESTS = TESTS / "lab"
DURATIONS = TESTS / "durations.json"
"""File below `tests` → seconds of all its tests, several files at a time on two cores. Without a measurement,
a file of node tests is among the longest and one of unit tests is short.
"""
SHORT = 5
"""Seconds below which a file of unit tests is not in the table."""
PROMISES = {
    "a fresh node is in its declared state after one run, a second run changes nothing": (
        "test_roles::test_check_says_what_would_change_and_changes_nothing",
        "test_roles::test_a_fresh_node_gets_everything_in_one_run",
        "test_roles::test_the_second_run_changes_nothing",
        "test_roles::test_a_reboot_brings_driver_persistence_and_clocks",
    ),
    "both witnesses see a fault, and apply corrects it": ("test_mutations",),
    "SSH hardening locks nobody out": (
        "test_ssh_hardening::test_nothing_differs_and_nothing_fails_afterwards",
        "test_ssh_hardening::test_a_change_that_shuts_us_out_is_reverted_and_reported",
        "test_deadman::test_of_two_runs_at_once_one_is_armed",
        "test_deadman::test_a_connection_lost_after_disarm_loses_no_change",
    ),
    "an upgrade moves all nodes or none, and there is a way back": (
        "test_upgrade::test_the_plan_shows_the_gate_and_changes_nothing",
        "test_upgrade::test_a_canary_that_fails_goes_back_and_stops_the_run",
    ),
    "a fresh server becomes verified without a login": (
        "test_first_boot::test_a_fresh_server_is_verified_with_nobody_watching",
    ),
}
"""Promise → its tests: a file of this folder, or a test of one."""
ROLE = re.compile(r"(?:roles|gpuprov/roles|gpuprov/drift/observations)/(\w+)[/.]|.*/suite/test_(\w+)\.py")
TESTED_IN = {
    "container_toolkit": "test_containerd",
    "cuda_toolkit": "test_repository",
    "cudnn": "test_repository",
    "fabric_manager": "test_repository",
    "firewall": "test_ssh_hardening",
    "nccl": "test_network",
    "package_pins": "test_nvidia_driver",
    "packages": "test_nvidia_driver",
    "preflight": "test_roles",
    "profiling_tools": "test_repository",
    "repositories": "test_mirror_days",
}
"""Role without its own file → the file with its tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Define the plugin's options."""
    group = parser.getgroup("selection of tests")
    group.addoption("--promises", action="store_true", help="no thorough test, and few node tests")
    group.addoption("--slow-files", action="store_true", help="files with a slow test, whole")
    group.addoption("--store-durations", action="store_true", help=f"write {DURATIONS.name}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select tests and put the longest files in front."""
    if config.getoption("--promises"):
        chosen = [each for promised in PROMISES.values() for each in promised] + sorted(changed_files())
        _keep(config, items, lambda item: _is_quick(item, chosen))
    if config.getoption("--slow-files"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        _keep(config, items, lambda item: item.path in slow)
    durations: dict[str, float] = json.loads(DURATIONS.read_text())
    longest = max(durations.values())
    for item in items:
        durations.setdefault(_name(item.path), longest if _is_of_nodes(item.path) else 0)
    items.sort(key=lambda item: -durations[_name(item.path)])


def _keep(config: pytest.Config, items: list[pytest.Item], wanted: Callable[[pytest.Item], bool]) -> None:
    """Deselect the tests that are not wanted."""
    dropped = [item for item in items if not wanted(item)]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if wanted(item)]


def _name(path: Path) -> str:
    """Return the key of a file in `DURATIONS`."""
    return str(path.relative_to(TESTS).with_suffix(""))


def _is_of_nodes(path: Path) -> bool:
    """Return whether a file has node tests."""
    return path.is_relative_to(NODE_TESTS)


def _is_quick(item: pytest.Item, chosen: Iterable[str]) -> bool:
    """Return whether a unit test is not thorough, or a node test, or its whole file, is a chosen one."""
    if not _is_of_nodes(item.path):
        return item.get_closest_marker("thorough") is None
    test = item.nodeid.partition("::")[2].partition("[")[0]
    return item.path.stem in chosen or f"{item.path.stem}::{test}" in chosen


def changed_files() -> set[str]:
    """Return the node test files of this folder for what the working tree or its branch changes."""
    found = set()
    for path in _changed_paths():
        if match := ROLE.match(path):
            role = match[1] or match[2]
            found.add(TESTED_IN.get(role, f"test_{role}"))
        elif path.startswith("tests/lab/test_"):
            found.add(Path(path).stem)
    return {name for name in found if (NODE_TESTS / f"{name}.py").exists()}


def _changed_paths() -> list[str]:
    """Return the files that differ from the upstream branch, also new ones."""
    base = _git("merge-base", "HEAD", "@{upstream}").strip() or "HEAD"
    return [
        *_git("diff", "--name-only", base).splitlines(),
        *_git("ls-files", "--others", "--exclude-standard").splitlines(),
    ]


def _git(*arguments: str) -> str:
    """Return what git prints; nothing where it fails, such as in a clone without an upstream branch."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Iterator[None]:
    """Name what was left out, and store durations if wanted."""
    result = yield
    if config.getoption("--store-durations"):
        _store(terminalreporter)
    if config.getoption("--promises"):
        left = _left_out(terminalreporter)
        files = ", ".join(f"{name} {count}" for name, count in left.items())
        terminalreporter.write_line(f"left out, in `scripts/test --all`: {sum(left.values())} tests: {files}")
    return result


def _left_out(reporter: pytest.TerminalReporter) -> dict[str, int]:
    """Return file → number of its test functions that did not run. With xdist only the workers collect."""
    ran: dict[str, set[str]] = defaultdict(set)
    for report in _reports(reporter):
        file, _, test = report.nodeid.partition("::")
        ran[file].add(test.partition("[")[0])
    left = {}
    for path in sorted(TESTS.glob("*/**/test_*.py")):
        tests = set(re.findall(r"(?m)^def (test_\w+)", path.read_text()))
        if missing := tests - ran[str(path.relative_to(ROOT))]:
            left[path.stem.removeprefix("test_")] = len(missing)
    return left


def _reports(reporter: pytest.TerminalReporter) -> Iterator[pytest.TestReport]:
    """Yield all reports of tests."""
    for reports in reporter.stats.values():
        yield from (each for each in reports if isinstance(each, pytest.TestReport))


def _store(reporter: pytest.TerminalReporter) -> None:
    """Store the seconds of each file of tests that was run, next to those of others."""
    seconds: dict[str, float] = defaultdict(float)
    for report in _reports(reporter):
        seconds[_name(ROOT / report.nodeid.partition("::")[0])] += report.duration
    known: dict[str, float] = json.loads(DURATIONS.read_text()) | seconds
    kept = {
        name: round(value)
        for name, value in sorted(known.items())
        if (path := TESTS / f"{name}.py").exists() and (value >= SHORT or _is_of_nodes(path))
    }
    DURATIONS.write_text(json.dumps(kept, indent=1) + "\n")
