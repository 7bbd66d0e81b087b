"""Work on nodes, done by this process or by workers: the only interface between the two.

`Dispatch.spread` calls the work in this process, or gives it to a crew of workers, which sends the same
function to its workers and returns the same results. A worker's answer is data of the type that the caller
states, and never an object that the worker chose. Callers do not depend on which of the two does it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed, Unreachable

V = TypeVar("V")
R = TypeVar("R")


class CrewLost(Unreachable):
    """Loss of all workers, which ends the run; not a failure of a node."""


Work = Callable[[Mapping[str, V]], Mapping[str, R]]
"""Work on some nodes: maps node → its input to node → its result."""
Part = Callable[[Collection[str]], Work[V, R]]
"""Factory of the work for some nodes; that work contains no data about other nodes."""
Hear = Callable[[Collection[str], int, Any], None]
"""Receiver of events, called with the nodes that a worker may have, the number of its attempt, and the event
as plain JSON data. It validates the event itself, and raises `NodeFailed` for an impossible one."""


class Crew(Protocol):
    """Workers that connect to the nodes."""

    def do(
        self, part: Part[V, R], each: Mapping[str, V], *, answer: Any, hear: Hear | None, changes: bool
    ) -> Iterator[tuple[str, R | GpuprovError]]:
        """Do work on nodes, see `Dispatch.spread`."""
        ...


@dataclass(frozen=True)
class Attempt:
    """The attempt that a worker is making at a shard of nodes.

    Attributes:
        number: later attempts of a run have higher numbers.
        worker: the worker's name, for messages.
        tell: sends an event to the controller, as plain JSON data.
        stop: set when the controller wants the attempt to end.
    """

    number: int
    worker: str
    tell: Callable[[dict[str, Any]], None]
    stop: threading.Event = field(default_factory=threading.Event)


_ATTEMPT: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


def current_attempt() -> Attempt | None:
    """Return the current attempt on a worker; None in a controller that uses no workers."""
    return _ATTEMPT.get()


@contextmanager
def attempting(this: Attempt) -> Iterator[None]:
    """Set the current attempt of this thread within the context."""
    token = _ATTEMPT.set(this)
    try:
        yield
    finally:
        _ATTEMPT.reset(token)


def with_place(answer: R | GpuprovError) -> R | GpuprovError:
    """Convert an `InvalidInput` on a worker to a `NodeFailed` that names the worker.

    Such an error, as a missing key, concerns the worker and not the node. Other answers, and all answers
    outside an attempt, are returned unchanged.
    """
    at = _ATTEMPT.get()
    if at is None or not isinstance(answer, InvalidInput):
        return answer
    return NodeFailed(f"worker {at.worker}: {answer.seen}", expected=answer.expected, do=answer.do)


@dataclass(frozen=True)
class Dispatch:
    """How a run reaches its nodes: itself, or through workers.

    Attributes:
        forks: nodes at a time.
        password: sudo's password, if sudo requires one. It is not sent to workers.
        crew: workers that connect to the nodes instead of this process.

    Raises:
        ValueError: a password together with workers.
    """

    forks: int = 64
    password: str | None = field(default=None, repr=False)
    crew: Crew | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a password together with workers."""
        if self.crew is not None and self.password is not None:
            raise ValueError("a password is not sent to workers")

    def here(self) -> Dispatch:
        """Return the same without workers, for the process that connects to the nodes."""
        return replace(self, crew=None)

    def spread(
        self,
        part: Part[V, R],
        each: Mapping[str, V],
        *,
        answer: Any,
        hear: Hear | None = None,
        changes: bool = False,
    ) -> Iterator[tuple[str, R | GpuprovError]]:
        """Do work on nodes; yield results.

        With workers, results are yielded as they become ready. Without workers, the work is called once for
        all nodes, and its results are yielded in its order after it has ended; `answer`, `hear` and `changes`
        have no effect, and its exceptions are raised.

        Args:
            part: factory of the work for some of the nodes; called again for them if a worker is lost.
            each: node → input of the work.
            answer: type of a result, which pydantic can read from JSON. A worker's result of another shape is
                a failure of its node.
            hear: called with the events that the work sends with `Attempt.tell`.
            changes: whether the work changes nodes: an interrupted controller waits for such work.

        Yields:
            node and its result, or the reason why no worker could do the work.

        Raises:
            CrewLost: the workers cannot be reached.
        """
        if self.crew is None:
            yield from part(list(each))(each).items()
        else:
            yield from self.crew.do(part, each, answer=answer, hear=hear, changes=changes)


DIRECT = Dispatch()
"""This process connects to the nodes, 64 at a time, without a password."""
