"""Processor time and memory of code that reads a node's answer, with limits."""

from __future__ import annotations

import re
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

SECONDS = 5.0
"""Maximum processor time of one reader for one node's answer."""
MEMORY = 256 << 20
"""Maximum memory in bytes of one reader for one node's answer."""
_ENDS = 4 * MEMORY
"""Memory from which on a reader gets a MemoryError, so that a test does not take the machine's."""


class Cost(NamedTuple):
    """Processor time in seconds and additional memory in bytes that some work took."""

    seconds: float
    memory: int


def _ended(*_: object) -> None:
    """Raise TimeoutError; a handler of a signal."""
    raise TimeoutError


def cost_of(work: Callable[[], object]) -> Cost:
    """Return the cost of some work, ended soon after `SECONDS`; its errors do not count.

    The memory is the highest resident size; it is too low by what earlier work has freed and not returned.
    """
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGVTALRM, _ended)
    Path("/proc/self/clear_refs").write_text("5")  # the highest size is the present one: proc(5)
    resident = _status("VmHWM")
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + _ENDS, limits[1]))
    begun = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, 1.2 * SECONDS)
    try:
        with suppress(Exception):  # only its cost counts
            work()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return Cost(time.process_time() - begun, _status("VmHWM") - resident)


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor time of some work, as `cost_of`."""
    return cost_of(work).seconds


def _status(field: str) -> int:
    """Return a size of this process in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10
