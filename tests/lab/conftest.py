"""Labs for tests: each has a unique name and is removed after its test or when the next session starts."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from gpuprov_lab import Lab, lab_names
from gpuprov_lab.host import CACHE, locked
from tests.lab.command_line import end_what_was_left

NUMBERS = count(1)


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """SIGINT with Python's handler in test programs: a shell's background jobs inherit it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_leftovers() -> None:
    """Removal of killed sessions' labs: a lab's name has its owner's process id and start time.

    One worker at a time: another would not find the files of a lab that is being removed.
    """
    with locked(CACHE / "leftovers.lock"):
        for name in lab_names():
            owner = re.fullmatch(r"test-(\d+)-(\d+)-\d+", name)
            if owner and owner[2] != started(int(owner[1])):
                Lab(name).down()


@pytest.fixture(autouse=True)
def _nothing_left_running() -> Iterator[None]:
    """Cleanup after each test: no process of a failed test runs on into the next one."""
    yield
    end_what_was_left()


@pytest.fixture
def lab() -> Iterator[Lab]:
    """An empty lab for one test."""
    with Lab(fresh_lab_name()) as fresh:
        yield fresh


@pytest.fixture
def another_lab() -> Iterator[Lab]:
    """A second empty lab."""
    with Lab(fresh_lab_name()) as fresh:
        yield fresh


@pytest.fixture(scope="module")
def module_lab() -> Iterator[Lab]:
    """Empty lab for the tests of one file."""
    with Lab(fresh_lab_name()) as fresh:
        yield fresh


def fresh_lab_name() -> str:
    """Return a unique lab name that identifies this process."""
    return f"test-{os.getpid()}-{started(os.getpid())}-{next(NUMBERS)}"


def started(pid: int) -> str:
    """Return a process's start time in clock ticks since boot (proc(5), field 22 of stat), "" without one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except FileNotFoundError:
        return ""
