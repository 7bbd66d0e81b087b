"""Limit of the processor time in which the tests of one node read its answers."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from gpuprov.errors import NodeFailed

NODE_S = 30.0
"""Maximum processor time of all tests of a node in seconds; those of a recorded node take about 1 s."""
AGAIN_S = 0.5
"""Seconds of processor time after which the error is raised again, if a reader caught the first one."""


class TooSlow(NodeFailed):
    """Error: the tests of a node used up their processor time."""

    def __init__(self) -> None:
        limit = f"at most {NODE_S:g} s of processor time for all its checks"
        super().__init__("the node's answers take too long to read", expected=limit)


@dataclass
class ProcessorTime:
    """The processor time that a node's tests have left, in seconds."""

    left: float = NODE_S

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Subtract the time of a block, which runs in the main thread.

        Raises:
            TooSlow: in the block, when the time is over.
        """

        def end(_number: int, _frame: FrameType | None) -> None:
            self.left = 0.0
            raise TooSlow

        begun = time.thread_time()
        former = signal.signal(signal.SIGVTALRM, end)
        signal.setitimer(signal.ITIMER_VIRTUAL, max(self.left, 0.001), AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, former)
            self.left = max(0.0, self.left - (time.thread_time() - begun))
