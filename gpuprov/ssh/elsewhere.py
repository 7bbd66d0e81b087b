"""The one seam between a controller that reaches its nodes itself and one whose workers reach them.

`spread` does work on nodes: here, by calling it, unless a crew is engaged. A crew sends the same function to
workers and returns the same results. A worker's answer is data of the type that the caller states, and never
an object that the worker chose. Nothing else knows which of both it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
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
"""What is done on some nodes: node → what it needs, to node → its result."""
Part = Callable[[Collection[str]], Work[V, R]]
"""Makes the work for some nodes, which holds nothing that is about other nodes."""
Hear = Callable[[Collection[str], int, Any], None]
"""Gets nodes that a worker may have, the number of its attempt, and an event of it as plain JSON data. It
checks the event itself, and raises `NodeFailed` for one that cannot be."""


class Crew(Protocol):
    """Workers that reach the nodes."""

    def do(
        self, part: Part[V, R], each: Mapping[str, V], *, answer: Any, hear: Hear | None, changes: bool
    ) -> Iterator[tuple[str, R | GpuprovError]]:
        """See `spread`."""
        ...


@dataclass(frozen=True)
class Attempt:
    """On a worker: the shard that it works on.

    Attributes:
        number: of all attempts of a run the later one has the higher number.
        worker: its name, for a person.
        tell: gives an event to the controller: plain JSON data.
        stop: set when the controller wants no more of it.
    """

    number: int
    worker: str
    tell: Callable[[dict[str, Any]], None]
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
    """Return whether workers reach the nodes, and not this process."""
    return bool(_ENGAGED)


def attempt() -> Attempt | None:
    """Return what a worker is at; None on a controller that works by itself."""
    return _ATTEMPT.get()


@contextmanager
def attempting(this: Attempt) -> Iterator[None]:
    """Set what a worker is at meanwhile, in this thread."""
    token = _ATTEMPT.set(this)
    try:
        yield
    finally:
        _ATTEMPT.reset(token)


def with_place(answer: R | GpuprovError) -> R | GpuprovError:
    """Name the worker in an error that is the worker's and not the node's: a key that is not there."""
    at = _ATTEMPT.get()
    if at is None or not isinstance(answer, InvalidInput):
        return answer
    return NodeFailed(f"worker {at.worker}: {answer.seen}", expected=answer.expected, do=answer.do)


def spread(
    part: Part[V, R],
    each: Mapping[str, V],
    *,
    answer: Any,
    hear: Hear | None = None,
    changes: bool = False,
) -> Iterator[tuple[str, R | GpuprovError]]:
    """Do work on nodes; results come as they are ready.

    Args:
        part: makes the work for some of the nodes; may be called again for them when a worker is lost.
        each: node → what the work needs for it.
        answer: the type of a result: what pydantic can read from JSON. A worker's result of another shape
            is its node's failure.
        hear: gets the events that the work tells by `Attempt.tell`.
        changes: whether nodes are changed: such work is waited for when the controller is interrupted.

    Yields:
        node → its result, or why no worker could do it.

    Raises:
        CrewLost: the workers are out of reach.
    """
    if _ENGAGED:
        yield from _ENGAGED[-1].do(part, each, answer=answer, hear=hear, changes=changes)
    else:
        yield from part(list(each))(each).items()
