"""Task of a worker: one attempt at a shard of nodes, and the events that it sends meanwhile."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from typing import Any

from distributed import get_worker

from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed
from gpuprov.ssh.dispatch import Attempt, attempting
from gpuprov.ssh.workers.version import VERSION

EVENT = "event"


@dataclass(frozen=True)
class Shard:
    """An attempt at some nodes.

    Attributes:
        version: version of the controller.
        topic: Dask's topic for the events.
        number: number of the attempt, which identifies it in events and in requests to stop.
        work, each: pickled, see `gpuprov.ssh.dispatch.spread`.
    """

    version: str
    topic: str
    number: int
    work: bytes
    each: bytes


_AT_WORK: dict[tuple[str, int], threading.Event] = {}


def perform(shard: Shard) -> bytes:
    """Do the work; return a pickled pair: node → result, or the error; and the number of events sent.

    Raises:
        InvalidInput: the controller has another version than this worker.
    """
    import cloudpickle

    if shard.version != VERSION:
        raise InvalidInput(f"has {VERSION}", expected=shard.version)
    worker, message = get_worker(), 0

    def tell(event: dict[str, Any]) -> None:
        nonlocal message
        message += 1
        worker.log_event(shard.topic, {"number": shard.number, EVENT: event})

    stop = threading.Event()
    _AT_WORK[shard.topic, shard.number] = stop
    try:
        with attempting(Attempt(shard.number, str(worker.name), tell, stop)):
            found = _found(shard, str(worker.name))
    finally:
        del _AT_WORK[shard.topic, shard.number]
    answer: bytes = cloudpickle.dumps((found, message))
    return answer


def _found(shard: Shard, worker: str) -> dict[str, Any] | GpuprovError:
    """Return node → result, or the error that ended the whole work, with the worker's name."""
    work, each = pickle.loads(shard.work), pickle.loads(shard.each)  # noqa: S301 - from our own controller
    try:
        found = dict(work(each))
    except GpuprovError as error:
        return NodeFailed(f"worker {worker}: {error}")
    return found


def stop(topic: str, numbers: list[int]) -> list[int]:
    """Have attempts end as soon as that is safe; return those that are still running."""
    still = [number for number in numbers if (topic, number) in _AT_WORK]
    for number in still:
        _AT_WORK[topic, number].set()
    return still
