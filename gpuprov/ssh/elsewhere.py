"""The one seam between a controller that reaches its nodes itself and one that has workers reach them.

`spread` does work on nodes: here, by calling it, unless a crew is engaged. A crew takes the same function to
workers, in shards of nodes, and hands back the same results. Nothing else knows which of both it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed, Unreachable

V = TypeVar("V")
R = TypeVar("R")


class CrewLost(Unreachable):
    """Nobody can be sent to any node any more: the end of the run here, and no node's failure."""


Work = Callable[[Mapping[str, V]], Mapping[str, R]]
"""What is done on some nodes: node → what it needs, to node → what came of it."""
Hear = Callable[[dict[str, Any]], None]


class Crew(Protocol):
    """Workers that reach the nodes."""

    def do(
        self, work: Work[V, R], each: Mapping[str, V], *, hear: Hear | None, changes: bool
    ) -> Iterator[tuple[str, R | GpuprovError]]:
        """See `spread`."""
        ...


@dataclass(frozen=True)
class Attempt:
    """On a worker: the shard that it works on.

    Attributes:
        number: of all attempts of a run the later one has the higher number.
        worker: its name, for a person.
        tell: gives an event to the controller.
        stop: set when the controller wants no more of it.
    """

    number: int
    worker: str
    tell: Hear
    stop: threading.Event = field(default_factory=threading.Event)


_ENGAGED: list[Crew] = []
_ATTEMPT: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


@contextmanager
def engaged(crew: Crew) -> Iterator[None]:
    """Have a crew do what is done on nodes meanwhile, in all threads of this process."""
    _ENGAGED.append(crew)
    try:
        yield
    finally:
        _ENGAGED.remove(crew)


def is_engaged() -> bool:
    """Whether workers reach the nodes, and not this process."""
    return bool(_ENGAGED)


def attempt() -> Attempt | None:
    """On a worker, what it is at; None on a controller that works by itself."""
    return _ATTEMPT.get()


@contextmanager
def attempting(this: Attempt) -> Iterator[None]:
    """On a worker: what it is at meanwhile, in this thread."""
    token = _ATTEMPT.set(this)
    try:
        yield
    finally:
        _ATTEMPT.reset(token)


def with_place(answer: R | GpuprovError) -> R | GpuprovError:
    """What is wrong with a worker and not with a node says so: a key that is not there."""
    at = _ATTEMPT.get()
    if at is None or not isinstance(answer, InvalidInput):
        return answer
    return NodeFailed(f"worker {at.worker}: {answer.seen}", expected=answer.expected, do=answer.do)


def spread(
    work: Work[V, R], each: Mapping[str, V], *, hear: Hear | None = None, changes: bool = False
) -> Iterator[tuple[str, R | GpuprovError]]:
    """Do work on nodes; results come as they are ready.

    Args:
        work: of workers it may get a part of the nodes, and may be called again for them when one is lost.
        each: node → what the work needs for it.
        hear: gets what the work tells by `Attempt.tell`.
        changes: whether nodes are changed: such work is waited for when the controller is interrupted.

    Yields:
        node → what came of it, or why no worker could do it.

    Raises:
        CrewLost: the workers are out of reach.
    """
    if _ENGAGED:
        yield from _ENGAGED[-1].do(work, each, hear=hear, changes=changes)
    else:
        yield from work(each).items()
