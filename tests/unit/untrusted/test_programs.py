"""Programs with untrusted output: limits hold, also if a program leaves processes behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuprov.errors import NodeFailed
from gpuprov.untrusted.programs import STDERR_BYTES, Answer, run_limited


def sh(script: str, stdin: bytes = b"", *, seconds: float = 30, limit: int = 1000) -> Answer:
    """Run a shell script with limits, and return its answer."""
    return run_limited(["/bin/sh", "-c", script], stdin, seconds=seconds, limit=limit)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    """File for the id of a process that keeps the program's pipes open in its own session."""
    file = tmp_path / "pid"
    yield file
    with suppress(OSError, ValueError):
        os.kill(int(file.read_text()), signal.SIGKILL)


def test_input_output_and_exit_code() -> None:
    assert sh("cat; echo bad >&2; exit 3", b"text") == Answer(3, b"text", b"bad\n")
    assert sh("true", b"x" * 1_000_000).code == 0
    assert sh("kill -9 $$").code == -signal.SIGKILL


def test_more_input_and_output_than_a_pipe_holds() -> None:
    text = os.urandom(3_000_000)
    assert run_limited(["cat"], text, seconds=30, limit=len(text)).stdout == text


def test_of_standard_error_the_first_part_is_kept_and_the_program_not_blocked() -> None:
    done = sh("head -c 1000000 /dev/zero >&2; echo end")
    assert (done.stdout, len(done.stderr)) == (b"end\n", STDERR_BYTES)


def test_too_much_output_and_too_much_time() -> None:
    with pytest.raises(NodeFailed, match="answered more than 1 MB"):
        sh("yes", limit=1 << 20)
    with pytest.raises(NodeFailed, match=r"no answer within 0\.3 s"):
        sh("sleep 60 & sleep 60", seconds=0.3)
    with pytest.raises(NodeFailed, match=r"no answer within 0\.3 s"):
        sh("exec >&- 2>&-; sleep 60", seconds=0.3)


@pytest.mark.parametrize("pipes", [">&- ", "2>&- ", ""], ids=["stderr", "stdout", "both"])
def test_a_process_of_another_session_does_not_delay_the_result(daemon: Path, pipes: str) -> None:
    begun = time.monotonic()
    assert sh(f"setsid sh -c 'echo $$ >{daemon}; exec sleep 60' {pipes}& echo done").stdout == b"done\n"
    assert time.monotonic() - begun < 10


def test_nor_does_it_after_the_time_is_over(daemon: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(NodeFailed, match="no answer"):
        sh(f"setsid sh -c 'echo $$ >{daemon}; exec sleep 60' & sleep 60", seconds=1)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("rest", [False, True])
def test_processes_that_outlive_the_program(tmp_path: Path, rest: bool) -> None:
    script = f"sleep 60 >/dev/null 2>&1 & echo $! >{tmp_path}/pid"
    run_limited(["/bin/sh", "-c", script], seconds=30, limit=10, kill_rest=rest)
    pid = int((tmp_path / "pid").read_text())
    time.sleep(0.2)
    stat = Path(f"/proc/{pid}/stat")
    alive = stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    assert alive is not rest
    if alive:
        os.kill(pid, signal.SIGKILL)


def test_a_program_is_stopped_from_another_thread() -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    begun = time.monotonic()
    with pytest.raises(NodeFailed, match="interrupted"):
        run_limited(["sleep", "60"], seconds=60, limit=10, stop=stop)
    assert time.monotonic() - begun < 10
