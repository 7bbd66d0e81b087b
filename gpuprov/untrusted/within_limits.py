"""Limits of this process's memory and processor time, for work on files that another person wrote.

Each reader has its own limits, which know what they read and name its place; these hold for all of them
together, and for what none of them counts.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from gpuprov.errors import InvalidInput

MEMORY = 4 << 30
"""Maximum memory in bytes that such work takes, also each program that it starts (our choice, as for pip and
Ansible at an import).
"""
PROCESSOR_S = 600.0
"""Maximum processor time in seconds (our choice)."""
GRACE_S = 30.0
"""Further processor time in seconds, after which the kernel ends the process."""
_STATM = Path("/proc/self/statm")


class _TimeOver(BaseException):
    """End of the processor time; no handler of errors takes it for an invalid file."""


@contextmanager
def within_limits() -> Iterator[None]:
    """Limit the additional memory and the processor time of some work; usable as a decorator.

    Work that is limited already keeps the limits that it has. Only the main thread can have them, since
    Python calls handlers of signals there. The memory is address space: macOS does not limit it.

    Raises:
        InvalidInput: the work has exceeded a limit.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_PROF)[0]:
        yield
        return
    memory = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, _over)
    _limit_memory(memory)
    signal.setitimer(signal.ITIMER_PROF, PROCESSOR_S, GRACE_S)
    try:
        yield
    except MemoryError:
        failure = f"{MEMORY / 2**30:g} GiB of memory"
    except _TimeOver:
        failure = f"{PROCESSOR_S / 60:g} min of processor time"
    else:
        return
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, memory)
    raise InvalidInput(
        f"the fleet, its lock and what they name take more than {failure}",
        do="they may be damaged, or made to do this: look at them before you use them",
    )


def _limit_memory(present: tuple[int, int]) -> None:
    """Limit the address space to `MEMORY` more than is used, unless a present limit, as of getrlimit(2), is
    lower; without /proc there is no such limit.
    """
    try:
        used = int(_STATM.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return
    lowest = min(each for each in (used + MEMORY, *present) if each != resource.RLIM_INFINITY)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (lowest, present[1]))


def _over(number: int, frame: FrameType | None) -> NoReturn:
    """Raise `_TimeOver`, and leave the next signal to the kernel; a handler of a signal."""
    signal.signal(number, signal.SIG_DFL)
    raise _TimeOver
