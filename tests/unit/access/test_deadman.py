"""Messages about a change that was not confirmed, from the answers of a fake node."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpuprov.access.deadman as deadman
from gpuprov.errors import GpuprovError, NodeFailed, Unreachable
from gpuprov.model.connection import Connection
from gpuprov.ssh.transport import Output, Target

TARGET = Target("a", "127.0.0.1", Connection())
WHY = Unreachable("a new login did not work: port 22: timed out")


def ended(monkeypatch: pytest.MonkeyPatch, *answers: Output | GpuprovError) -> GpuprovError | None:
    """Undo a change on a node that gives these answers, and the last one repeatedly; return the error."""
    left = list(answers)

    @contextmanager
    def open_session(*_: Any) -> Iterator[None]:
        """Open a session, or raise the next answer if it is an error; the last one is repeated."""
        if isinstance(left[0], GpuprovError):
            raise left.pop(0) if len(left) > 1 else left[0]
        yield

    def as_root(*_: Any) -> Output:
        """Return the next answer; the last one is repeated."""
        answer = left.pop(0) if len(left) > 1 else left[0]
        assert isinstance(answer, Output)
        return answer

    clock = count(0, 10)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(deadman, "open_session", open_session)
    monkeypatch.setattr(deadman, "as_root", as_root)
    return deadman.undo(None, TARGET, deadman.Guard(60), "mine", WHY)


def says(code: int, line: str = "") -> Output:
    """Return a command's output: its exit code, and a line of standard error."""
    return Output(code, b"", line.encode())


def test_a_node_that_answers_and_is_never_restored_is_reported_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = ended(monkeypatch, says(1, "cp: No space left on device"))
    assert error
    assert not isinstance(error, deadman.Undone)
    assert error.seen.endswith("; the node has not undone the change: cp: No space left on device")
    assert "as before" not in str(error)


def test_a_node_that_does_not_let_us_in_any_more_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ended(monkeypatch, Unreachable("refused the key"))
    assert error
    assert not isinstance(error, deadman.Undone)
    assert error.seen.endswith("; the old login does not work either yet: refused the key")


def test_as_before_is_what_the_node_says(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ended(monkeypatch, Unreachable("timed out"), says(1), says(0))
    assert isinstance(error, deadman.Undone)
    assert error.seen == f"{WHY.seen}; SSH and firewall are as before"


def test_a_change_that_was_kept_was_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(monkeypatch, Unreachable("timed out"), says(deadman.KEPT)) is None


def test_a_node_that_knows_nothing_of_the_run_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ended(monkeypatch, says(deadman.NOT_ARMED, "not armed for mine"), Unreachable("asked again"))
    assert error
    assert "not armed for mine" in error.seen


@pytest.mark.parametrize("umask", ["000", "077"])
@pytest.mark.parametrize("mode", [None, 0o755, 0o777, 0o775])
@pytest.mark.skipif(os.geteuid() != 0, reason="the folder is root's")
def test_the_switch_is_in_folders_of_root_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None, umask: str
) -> None:
    """Root's scripts and lock are in folders that only root can write to and open."""
    above = tmp_path / "gpuprov"
    if mode is not None:
        above.mkdir()
        above.chmod(mode)
        (above / "deadman").mkdir(0o755)

    def as_root(session: Any, command: str, password: str | None) -> Output:
        """Run the command on this machine with the umask, in a folder of the test."""
        here = command.replace("/var/lib/gpuprov", str(above)).replace("sh " + str(above), ": ")
        done = subprocess.run(["sh", "-c", f"umask {umask}; {here}"], capture_output=True, check=False)
        return Output(done.returncode, done.stdout, done.stderr)

    monkeypatch.setattr(deadman, "as_root", as_root)
    session: Any = SimpleNamespace(target=SimpleNamespace(route=SimpleNamespace(login="root")))
    if mode in (0o777, 0o775):
        with pytest.raises(
            NodeFailed, match=r"other users can write to .*: check its files, then chown root"
        ):
            deadman.arm(session, deadman.Guard(), "token")
        return
    deadman.arm(session, deadman.Guard(), "token")
    assert [oct(path.stat().st_mode & 0o777) for path in (above, above / "deadman")] == ["0o755", "0o700"]
