"""Processor time of code that reads a node's answer, with a limit."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress

SECONDS = 5.0
"""Maximum processor time of one reader for one node's answer."""


def _ended(*_: object) -> None:
    raise TimeoutError


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor time of some work, ended soon after `SECONDS`; its errors do not count."""
    before = signal.signal(signal.SIGVTALRM, _ended)
    begun = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, 1.2 * SECONDS)
    try:
        with suppress(Exception):  # only its time counts
            work()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return time.process_time() - begun
