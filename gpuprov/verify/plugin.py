"""The pytest plugin: `--lock`, one run of each test per node, and a log of the results.

    pytest -p gpuprov.verify.plugin --pyargs gpuprov.verify.suite --lock fleet.lock.yml

A test names its check with `@pytest.mark.check(id, *look)`; `look` are commands whose output is
shown when it fails.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gpuprov.errors import Exit, GpuprovError, Unreachable
from gpuprov.model.lock import read_lock
from gpuprov.model.selection import narrowed
from gpuprov.ssh.contained import contained
from gpuprov.untrusted import shown
from gpuprov.untrusted.secrecy import public_settings
from gpuprov.verify.ahead import Ahead
from gpuprov.verify.connection import TimeLimits
from gpuprov.verify.event_log import EventLog
from gpuprov.verify.nodes import NodeUnderTest, ask_all_ahead, connect_all, nodes_under_test
from gpuprov.verify.observers import register
from gpuprov.verify.processor_time import TooSlow
from gpuprov.verify.values import SHOWN, cut, plain
from gpuprov.verify.verdict import CheckResult
from gpuprov.verify.wanted import remedy

LAST_LINES = 15
"""Number of lines of a command's output in the detail of a failed check."""
SUMMARY = 240
"""Maximum length of a value in the message of a failed comparison."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add gpuprov's options, such as `--lock` and `--limit`, to pytest."""
    ours = parser.getgroup("gpuprov")
    ours.addoption("--lock", type=Path, default=Path("fleet.lock.yml"), help="the lock to verify against")
    ours.addoption("--limit", default="", help="only these nodes, such as gpu[01-08]")
    ours.addoption("--local", action="store_true", help="this machine in place of the lock's nodes, no SSH")
    ours.addoption("--image", action="store_true", help="a tree that never was booted: only what it can show")
    ours.addoption("--sudo-password-fd", type=int, help="read sudo's password from this file descriptor")
    ours.addoption("--account", type=Path, help="write what was seen to this file, a JSON object a line")
    ours.addoption(
        "--command-timeout", type=float, default=TimeLimits.command_s, help="seconds a command may take"
    )
    ours.addoption("--node-timeout", type=float, default=TimeLimits.node_s, help="seconds a node may take")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Read the lock and connect to its nodes, before tests are generated for them; register `Verification`.

    Raises:
        UsageError: the lock cannot be read, or `--limit` has a name that is not in it.
    """
    option = session.config.option
    try:
        lock = narrowed(read_lock(option.lock), option.limit)
    except GpuprovError as error:
        raise pytest.UsageError(str(error)) from None
    limits = TimeLimits(option.command_timeout, option.node_timeout)
    password = _password(option)
    nodes = nodes_under_test(lock, local=option.local, limits=limits, password=password, image=option.image)
    session.config.pluginmanager.register(Verification(nodes, EventLog(option.account)))


class Differs(AssertionError):
    """A failed comparison with its actual and its expected value."""

    def __init__(self, op: str, actual: Any, expected: Any) -> None:
        super().__init__(" ".join((shown(plain(actual), SUMMARY), op, shown(expected, SUMMARY))))
        self.actual, self.expected = actual, expected


class Verification:
    """One session's nodes and the hooks that test them; an instance connects to the nodes."""

    def __init__(self, nodes: list[NodeUnderTest], events: EventLog) -> None:
        self.nodes, self.events = nodes, events
        self.begun: list[NodeUnderTest] = []
        connect_all(nodes)
        for node in nodes:
            if node.lost:
                events.lost(node.name, node.lost)
        register()
        # The others of a group are asked ahead by the commands of its first node.
        firsts = {id(node.group): node for node in reversed(nodes) if not node.lost}
        self.ahead = [Ahead(node) for node in firsts.values()]

    def pytest_configure(self, config: pytest.Config) -> None:
        """Add the mark `check` to pytest."""
        config.addinivalue_line("markers", "check(id, *look): the expectation checked, and what to look at")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Generate a run of a test for each reachable node whose check is wanted.

        Functions without the mark `check` or the fixture `node` are not changed.
        """
        mark = metafunc.definition.get_closest_marker("check")
        if mark is None or "node" not in metafunc.fixturenames:
            return
        nodes = [node for node in self.nodes if not node.lost and mark.args[0] in node.wanted]
        names = [node.name for node in nodes]
        metafunc.parametrize("node", nodes, indirect=True, ids=names, scope="session")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort tests by node and in the lock's order, drop those without a node, and log each node's plan."""
        items[:] = sorted(filter(_node, items), key=self._turn)
        plans: dict[str, list[str]] = {node.name: [] for node in self.nodes if not node.lost}
        for item in items:
            plans[item.callspec.params["node"].name].append(_mark(item).args[0])  # type: ignore[attr-defined]
        for name, checks in plans.items():
            self.events.plan(name, checks)

    def _turn(self, item: pytest.Item) -> tuple[int, int]:
        """Return the sort key: node by node, each with its checks in the order of the lock."""
        node = _node(item)
        assert node is not None
        return self.nodes.index(node), list(node.wanted).index(_mark(item).args[0])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Run a group's commands concurrently once its first node is done; skip the tests of a lost node."""
        node = _node(item)
        if node and node not in self.begun:
            self._begin(node)
        if node and node.lost:
            pytest.skip(f"{node.name}: {node.lost}")

    def _begin(self, node: NodeUnderTest) -> None:
        """Note that a node's tests begin.

        Before those of a group's second node, ask all its other nodes ahead. The commands are those of the
        first node. A node that is lost thereby is logged. The values of the node before are dropped.
        """
        alike = [done for done in self.begun if done.group is node.group]
        for before in self.begun[-1:]:
            before.forget()
        self.begun.append(node)
        if len(alike) != 1:
            return  # the group's first node, or the results are already cached
        others = [other for other in self.nodes if other.group is node.group and other not in alike]
        reachable = [other for other in others if not other.lost]
        ask_all_ahead(alike[0], reachable)
        for other in reachable:
            if other.lost:
                self.events.lost(other.name, other.lost)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Run a test within the processor time of its node, so that no node delays those after it."""
        node = _node(item)
        if node is None:
            return (yield)
        with node.processor_time.limited():
            return (yield)

    def pytest_assertrepr_compare(self, op: str, left: Any, right: Any) -> None:
        """End the test with the two values of its failed comparison, in place of pytest's explanation.

        pytest would normalize texts of a node and compare their lines, in more than linear time.

        Raises:
            Differs: always.
        """
        raise Differs(op, left, right)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Log the result of a test that ran; for a failed one add the output of its check's commands.

        If the connection broke, or the node's processor time is used up, the node is lost instead and the
        test has no result.
        """
        report = yield
        node = _node(item)
        ran = report.failed or (report.when == "call" and report.passed)
        if node is None or node.lost or not ran:
            return report
        error = call.excinfo.value if call.excinfo else None
        if not node.processor_time.left:
            error = TooSlow()
        if isinstance(error, Unreachable | TooSlow):
            node.lost = error
            self.events.lost(node.name, error)
            return report
        failure = contained(node.name, lambda: self._record(item, node, report, error))
        if failure:
            node.lost = failure
            self.events.lost(node.name, failure)
        return report

    def _record(
        self, item: pytest.Item, node: NodeUnderTest, report: pytest.TestReport, error: BaseException | None
    ) -> None:
        """Log the result of a test, and add its detail to the report."""
        result = _result(item, node, report, error)
        if result.detail:
            report.sections.append((f"{result.check} on {node.name}", result.detail))
        self.events.result(node.name, result)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End the shells and close the log.

        Set the exit code for unreachable nodes if no test failed and a node is lost.
        """
        for ahead in self.ahead:
            ahead.end()
        for node in self.nodes:
            node.backend.shell.close()
        self.events.close()
        fine = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if fine and any(node.lost for node in self.nodes):
            session.exitstatus = Exit.UNREACHABLE

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print one line for each node that could not be judged."""
        for node in self.nodes:
            if node.lost:
                terminalreporter.write_line(f"{node.name}: {node.lost}")


def _password(option: Any) -> str | None:
    """Return the first line of the file descriptor for sudo's password.

    None without one or if it is empty.
    """
    if option.sudo_password_fd is None:
        return None
    with open(option.sudo_password_fd, encoding="utf-8", closefd=False) as handed_over:
        return handed_over.readline().rstrip("\n") or None


def _node(item: pytest.Item) -> NodeUnderTest | None:
    """Return the node of a test; None for a test without one."""
    callspec = getattr(item, "callspec", None)
    node = callspec.params.get("node") if callspec else None
    return node if isinstance(node, NodeUnderTest) else None


def _mark(item: pytest.Item) -> pytest.Mark:
    """Return the mark `check` of a test, which must have one."""
    mark = item.get_closest_marker("check")
    assert mark is not None
    return mark


def _result(
    item: pytest.Item,
    node: NodeUnderTest,
    report: pytest.TestReport,
    error: BaseException | None,
) -> CheckResult:
    """Return the result of a test.

    A failed comparison has its two values; after another error the error's text is the actual value, and the
    lock's value the expected one. The detail has the test's notes, and of a failed
    one the output of the check's commands and the remedy.

    Args:
        error: None if the test passed.
    """
    check, *look = _mark(item).args
    expectation = node.wanted[check]
    seconds = round(report.duration, 3)
    notes = [plain(str(value)) for name, value in report.user_properties if name == "note"]
    if error is None:
        value = plain(expectation.expected)
        return CheckResult(check, "passed", value, value, "\n".join(notes), seconds)
    expected, actual = expectation.expected, str(error)
    if isinstance(error, Differs):
        expected, actual = error.expected, error.actual
    detail = "\n".join([*notes, *_seen_now(node, look), remedy(expectation, node.name)])
    return CheckResult(check, "failed", plain(expected), plain(actual), detail, seconds)


def _seen_now(node: NodeUnderTest, commands: list[str]) -> list[str]:
    """Run each command again; return for each `$ COMMAND` and the last `LAST_LINES` lines of its output
    without passwords and tokens, or its error.
    """
    seen = []
    for command in commands:
        try:
            said = node.host.run(f"{command} 2>&1").stdout.strip()
            last = said[-LAST_LINES * SHOWN :]
            whole = last if last == said else last.partition("\n")[2]  # half a URL shows its password
            lines = public_settings(whole).splitlines()
        except GpuprovError as error:
            lines = [str(error)]
        seen += [f"$ {command}", *(cut(line) for line in lines[-LAST_LINES:])]
    return seen
