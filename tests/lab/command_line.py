"""gpuprov as a person types it, in a folder that also keeps its history."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAM = (sys.executable, "-m", "gpuprov")
_STARTED: list[subprocess.Popen[str]] = []


def with_own_state(folder: Path) -> dict[str, str]:
    """The environment in which history and runs are kept in the folder."""
    return {**os.environ, "XDG_STATE_HOME": str(folder / "state")}


def in_place_of_ssh(folder: Path, then: str) -> tuple[str, ...]:
    """What runs a program with a folder mounted over root's ~/.ssh, in a mount namespace of its own.

    Args:
        then: sh that ends in the program, whose words are its arguments.
    """
    enter = f"mkdir -p -m 700 /root/.ssh && mount --bind {folder} /root/.ssh && {then}"
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", enter, "sh")


def start(folder: Path, *words: str, program: Sequence[str | Path] = PROGRAM) -> subprocess.Popen[str]:
    """One command line, not waited for; what a failed test leaves of it is ended after that test."""
    process = subprocess.Popen(
        [*program, *words],
        cwd=folder,
        env=with_own_state(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _STARTED.append(process)
    return process


def end_what_was_left() -> None:
    """Kill what was started and still runs."""
    while _STARTED:
        with _STARTED.pop() as process:  # closes its pipes and waits
            process.kill()


def gpuprov(
    folder: Path, *words: str, code: int | None = 0, program: Sequence[str | Path] = PROGRAM
) -> subprocess.CompletedProcess[str]:
    """One command line; whatever it says, it is not a traceback.

    Args:
        code: the exit code that it must have; None allows any.
    """
    with start(folder, *words, program=program) as process:
        out, err = process.communicate()
    if "Traceback" in out + err or code not in (None, process.returncode):
        raise AssertionError(f"gpuprov {' '.join(words)}: exit {process.returncode}\n{out}{err}")
    return subprocess.CompletedProcess(words, process.returncode, out, err)
