"""Shell that runs the checks' commands on a node."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprov.errors import NodeFailed, Unreachable
from gpuprov.verify.shell import NoAnswer, Shell, ShellBackend
from gpuprov.verify.values import ITEMS, SHOWN, plain
from tests import ROOT


@pytest.fixture
def shell() -> Iterator[Shell]:
    shell = Shell(["/bin/sh"], timeout_s=10)
    yield shell
    shell.close()


def test_status_and_both_outputs_come_back_apart(shell: Shell) -> None:
    assert shell.ask("echo out; echo err >&2; exit 3") == (3, b"out\n", b"err\n")


@pytest.mark.parametrize(
    "text", ["", "no newline", "two\n\nlines\n\n", "'quotes' \"both\" $HOME `x`", "%s %d"]
)
def test_text_comes_back_as_it_was(shell: Shell, text: str) -> None:
    """Check that any text is returned unchanged by the node's shell."""
    quoted = text.replace("'", "'\\''")
    assert shell.ask(f"printf %s '{quoted}'") == (0, text.encode(), b"")


def test_large_and_binary_answers(shell: Shell) -> None:
    status, out, _ = shell.ask("head -c 3000000 /dev/zero; printf '\\377\\n\\n'")
    assert (status, len(out), out[-3:]) == (0, 3_000_003, b"\xff\n\n")


def test_command_cannot_eat_the_next_one(shell: Shell) -> None:
    assert shell.ask("cat") == (0, b"", b"")
    assert shell.ask("echo next")[1] == b"next\n"


def test_greeting_before_the_first_command_is_no_answer() -> None:
    shell = Shell(["/bin/sh", "-c", "echo Welcome; echo to you >&2; exec sh"], timeout_s=10)
    shell.open()
    assert shell.ask("echo mine") == (0, b"mine\n", b"")
    shell.close()


def test_hanging_command_costs_its_time_and_no_more() -> None:
    shell = Shell(["/bin/sh"], timeout_s=0.3)
    started = time.monotonic()
    with pytest.raises(NoAnswer, match="no answer to `sleep 30`"):
        shell.ask("sleep 30")
    assert time.monotonic() - started < 2
    assert shell.ask("echo again")[1] == b"again\n"
    shell.close()


def test_a_node_that_stops_reading_has_the_time_of_a_command() -> None:
    shell = Shell(["/bin/sh", "-c", 'read -r _; read -r mark; eval "$mark"; exec sleep 600'], timeout_s=0.5)
    shell.open()
    started = time.monotonic()
    with pytest.raises(NoAnswer, match="no answer to `: a"):
        shell.ask(f": {'a' * (1 << 20)}")
    assert time.monotonic() - started < 3


def test_a_command_is_not_longer_than_an_argument() -> None:
    backend = ShellBackend("node", Shell(["/bin/sh"], timeout_s=10), budget_s=10)
    assert backend.run("printf %s", "a" * 100_000).failed is False
    with pytest.raises(NoAnswer, match="was not run: it has more than 128 KiB"):
        backend.run("printf %s", "a" * 140_000)
    backend.shell.close()


def test_endless_answer_is_cut() -> None:
    shell = Shell(["/bin/sh"], timeout_s=30)
    with pytest.raises(NoAnswer, match="the answer of `yes` did not end"):
        shell.ask("yes")


def test_an_answer_that_goes_on_ends_with_the_time_of_a_command() -> None:
    """Send on without a pause: a look at the time only when nothing is ready would never come."""
    shell = Shell(["/bin/sh"], timeout_s=2)
    shell.open()
    started = time.monotonic()
    with pytest.raises(NoAnswer, match="did not end; expected at most 8 MiB"):
        shell.ask("while :; do printf x; done")
    assert time.monotonic() - started < 8


def test_words_of_ssh_are_the_reason() -> None:
    refused = Shell(["/bin/sh", "-c", "echo 'ssh: no route to host' >&2; exit 255"], timeout_s=10)
    with pytest.raises(Unreachable, match=r"^ssh: no route to host$"):
        refused.open()


@pytest.mark.parametrize(
    ("login", "reason"),
    [
        ("echo 'sudo: a password is required' >&2; exit 1", "sudo: a password"),
        ("exit 1", "ended with status 1"),
        ("echo 'permitted by applicable law.'; exit 254", "PAM opens no session"),
    ],
)
def test_no_shell_behind_the_login_is_the_node_failing(login: str, reason: str) -> None:
    with pytest.raises(NodeFailed, match=reason):
        Shell(["/bin/sh", "-c", login], timeout_s=10).open()


def test_backend_asks_once(tmp_path: object) -> None:
    """Check that a shared command runs once on a node, and that those that could be shared are listed."""
    backend = ShellBackend("node", Shell(["/bin/sh"], timeout_s=10), budget_s=10)
    backend.shared = lambda command, arguments: arguments == ("a b",)
    first = backend.run("date +%%N; echo %s", "a b")
    assert first.stdout.endswith("a b\n")
    assert backend.run("date +%%N; echo %s", "a b").stdout == first.stdout
    backend.run("echo %s", "other")
    assert backend.sharable == ["date +%N; echo 'a b'"]
    backend.shell.close()


def test_failure_is_remembered_too() -> None:
    backend = ShellBackend("node", Shell(["/bin/sh"], timeout_s=0.2), budget_s=10)
    for _ in range(2):
        with pytest.raises(NoAnswer):
            backend.run("sleep 30")
    with pytest.raises(NoAnswer, match="`sleep 1` was not run: sleep hung before"):
        backend.run("sleep 1")
    assert backend.budget_s > 9.5


def test_node_has_a_budget() -> None:
    backend = ShellBackend("node", Shell(["/bin/sh"], timeout_s=0.2), budget_s=0.1)
    with pytest.raises(NoAnswer, match="no answer"):
        backend.run("sleep 30")
    with pytest.raises(NoAnswer, match="`echo` was not run: the node's time is used up"):
        backend.run("echo")


def test_silent_login_does_not_give_the_greeting_away() -> None:
    shell = Shell(["/bin/sh", "-c", "sleep 30"], timeout_s=0.2, greeting="secret\n")
    with pytest.raises(NodeFailed, match=r"^no shell within 0.2 s of connecting$") as caught:
        shell.open()
    assert "secret" not in str(caught.value)


def test_node_has_a_budget_of_bytes() -> None:
    backend = ShellBackend("node", Shell(["/bin/sh"], timeout_s=10), budget_s=10, budget_bytes=5000)
    assert len(backend.run("head -c 4000 /dev/zero").stdout) == 4000
    with pytest.raises(NoAnswer, match=r"4001 /dev/zero` was dropped: the node's answers are larger"):
        backend.run("head -c 4001 /dev/zero")
    with pytest.raises(NoAnswer, match=r"`echo` was not run: the node's answers are larger than its limit"):
        backend.run("echo")
    assert sum(len(each.stdout) for each in backend._answers.values() if hasattr(each, "stdout")) == 4000
    backend.shell.close()


def test_values_of_a_result_are_cut() -> None:
    result = plain({"x" * 9000: ["y" * 9000] * 2000, "z": {"a" * 9000}})
    assert [len(key) for key in result] == [SHOWN + 1, 1]
    items = result["x" * SHOWN + "…"]
    assert len(items) == ITEMS
    assert {len(each) for each in items} == {SHOWN + 1}


def test_the_words_of_testinfra_name_the_command_and_its_errors() -> None:
    backend = ShellBackend("node", Shell(["/bin/sh"], timeout_s=10), budget_s=10)
    said = backend.run("echo not booted >&2; echo no bus >&2; exit %s", "3")
    assert str(said) == "`echo not booted >&2; echo no bus >&2; exit 3`: not booted no bus"
    assert f"{backend.run('exit 3')}" == "`exit 3`"
    backend.shell.close()


def test_no_command_has_a_text_of_the_lock_unquoted() -> None:
    """Look at each command line of verify that is made with `%`, for all but constants of the module."""
    found = []
    for path in (ROOT / "gpuprov/verify").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_line = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
            if is_line and not re.fullmatch(r"shell_words\(.*\)|asks|[\d._A-Z]+", ast.unparse(node.right)):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
            is_joined = isinstance(node, ast.JoinedStr) and ".join(" in ast.unparse(node)
            if is_joined and re.search(r"host\.run|self\.(?:run|ask)", _line(path, node.lineno)):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def _line(path: Path, number: int) -> str:
    """Return a line of a file."""
    return path.read_text("utf-8").splitlines()[number - 1]
