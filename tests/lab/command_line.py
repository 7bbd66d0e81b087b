"""Calls of the gpuprov command line in a folder that also holds the run history."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import is_defect

PROGRAM = (sys.executable, "-m", "gpuprov")
_STARTED: list[subprocess.Popen[str]] = []


def with_own_state(folder: Path) -> dict[str, str]:
    """Return the environment that keeps history and runs in the folder."""
    return {**os.environ, "XDG_STATE_HOME": str(folder / "state")}


def in_place_of_ssh(folder: Path, then: str) -> tuple[str, ...]:
    """Return a command prefix that mounts a folder over root's ~/.ssh in a private mount namespace.

    Args:
        then: shell text that ends with a program; arguments after the prefix are passed to that program.
    """
    enter = f"mkdir -p -m 700 /root/.ssh && mount --bind {folder} /root/.ssh && {then}"
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", enter, "sh")


def start(folder: Path, *words: str, program: Sequence[str | Path] = PROGRAM) -> subprocess.Popen[str]:
    """Start gpuprov without waiting for it; `end_what_was_left` kills it after a failed test."""
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
    """Kill started processes that still run."""
    while _STARTED:
        with _STARTED.pop() as process:  # leaving the block closes its pipes and waits
            process.kill()


def gpuprov(
    folder: Path, *words: str, code: int | None = 0, program: Sequence[str | Path] = PROGRAM
) -> subprocess.CompletedProcess[str]:
    """Run gpuprov.

    Args:
        code: the required exit code; None allows any.

    Raises:
        AssertionError: another exit code, or a traceback in the output.
    """
    with start(folder, *words, program=program) as process:
        out, err = process.communicate()
    if is_defect(out + err) or code not in (None, process.returncode):
        raise AssertionError(f"gpuprov {' '.join(words)}: exit {process.returncode}\n{out}{err}")
    return subprocess.CompletedProcess(words, process.returncode, out, err)
