"""Labs for tests: a name of their own, and gone afterwards, at the latest when the next session starts."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from gpuprov.lab import Lab, lab_names
from tests.lab.command_line import end_what_was_left

NUMBERS = count(1)
LONGEST = (
    "chain",
    "molecule",
    "first_boot",
    "upgrade",
    "next_kernel",
    "modules",
    "roles",
    "image",
    "nvidia_driver",
)
"""Files that take more than some minutes: they come first, so that none of them is alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files in front."""
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Let programs that tests start hear SIGINT, which a shell's background jobs are born deaf to."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_leftovers() -> None:
    """Remove the labs of sessions that were killed: their names tell the process that owned them."""
    for name in lab_names():
        owner = re.fullmatch(r"test-(\d+)-(\d+)-\d+", name)
        if owner and owner[2] != started(int(owner[1])):
            Lab(name).down()


@pytest.fixture(autouse=True)
def _nothing_left_running() -> Iterator[None]:
    """A failure in one test must not become another's."""
    yield
    end_what_was_left()


@pytest.fixture
def lab() -> Iterator[Lab]:
    """An empty lab for one test."""
    with Lab(fresh_lab_name()) as fresh:
        yield fresh


@pytest.fixture
def another_lab() -> Iterator[Lab]:
    """An empty lab beside the first."""
    with Lab(fresh_lab_name()) as fresh:
        yield fresh


@pytest.fixture(scope="module")
def module_lab() -> Iterator[Lab]:
    """An empty lab for the tests of one file."""
    with Lab(fresh_lab_name()) as fresh:
        yield fresh


def fresh_lab_name() -> str:
    """A lab name that no other test has and that tells our process."""
    return f"test-{os.getpid()}-{started(os.getpid())}-{next(NUMBERS)}"


def started(pid: int) -> str:
    """When a process started, in clock ticks since boot (proc(5), field 22 of stat); "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except FileNotFoundError:
        return ""
