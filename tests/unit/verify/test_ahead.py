"""A node's second shell: what it runs the tests need, and nothing depends on it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from gpuprov.errors import Unreachable
from gpuprov.verify.ahead import LONG, Ahead
from gpuprov.verify.nodes import NodeUnderTest
from gpuprov.verify.observers import register
from gpuprov.verify.shell import Shell, ShellBackend
from tests.unit.verify.nodes_on_paper import PaperShell, judge, locked_group, paper_node


class Noting(PaperShell):
    """Fake second shell that notes what it runs."""

    def __init__(self, original: PaperShell, fails: bool) -> None:
        super().__init__(original.answers, None)
        self.ran, self.fails = list[str](), fails

    def ask(self, command: str, *, quoted: bool = True) -> tuple[int, bytes, bytes]:
        self.ran.append(command)
        if self.fails:
            raise Unreachable("Connection reset by peer")
        return super().ask(command, quoted=quoted)


def with_second(monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> tuple[NodeUnderTest, Noting]:
    """Return a node and its second shell."""
    node = paper_node("one", locked_group("one"), lambda _: None)
    second = Noting(node.backend.shell, fails)
    monkeypatch.setattr(node.backend.shell, "another", lambda: second, raising=False)
    return node, second


def test_what_the_second_shell_runs_is_what_the_tests_ask(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node, second = with_second(monkeypatch)
    register()
    Ahead(node)._thread.join()
    assert len(second.ran) >= len(LONG.keys() & node.wanted.keys())
    judge([node], tmp_path)
    assert set(second.ran) - node.backend._asked == set()


def test_verdict_without_the_second_shell_is_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def verdict(*, fails: bool) -> list[tuple[str, str]]:
        """Return check and status of each result."""
        node, second = with_second(monkeypatch, fails=fails)
        judged = judge([node], tmp_path)["one"]
        assert len(second.ran) == 1 if fails else len(second.ran) > 1
        return [(each.check, each.status) for each in judged.checks]

    assert verdict(fails=True) == verdict(fails=False)


def test_a_command_of_the_other_shell_is_waited_for() -> None:
    backend = ShellBackend("node", Shell(["/bin/sh"], timeout_s=10), budget_s=10)
    second = backend.shell.another()
    thread = threading.Thread(target=backend.remember, args=("sleep 0.5; echo $$", second))
    thread.start()
    while not backend._running:
        time.sleep(0.01)
    backend.run("sleep 0.5; echo $$")
    thread.join()
    first_shell_ran, second_shell_ran = backend.shell._process, second._process
    for shell in (backend.shell, second):
        shell.close()
    assert first_shell_ran is None
    assert second_shell_ran is not None


def test_the_end_does_not_wait_for_a_long_command(monkeypatch: pytest.MonkeyPatch) -> None:
    node = paper_node("one", locked_group("one"), lambda _: None)
    second = Shell(["/bin/sh"], timeout_s=30)
    monkeypatch.setattr(node.backend.shell, "another", lambda: second, raising=False)
    monkeypatch.setattr(Ahead, "_stated", lambda _: ["sleep 20", "sleep 21"])
    ahead = Ahead(node)
    while not node.backend._running:
        time.sleep(0.01)
    begun = time.monotonic()
    ahead.end()
    assert time.monotonic() - begun < 5
    assert node.backend._answers == {}
