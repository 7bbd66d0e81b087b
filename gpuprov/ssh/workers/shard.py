"""What a worker does: one attempt on a shard of nodes, and what it says meanwhile."""

from __future__ import annotations

import pickle
import platform
import threading
from dataclasses import dataclass
from typing import Any

from distributed import get_worker

from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed
from gpuprov.ssh.elsewhere import Attempt, attempting
from gpuprov.ssh.workers.version import VERSION

EVENT = "event"


@dataclass(frozen=True)
class Shard:
    """An attempt on some nodes.

    Attributes:
        version: of the controller.
        topic: where events go.
        number: of the attempt; its events and its stop are told by it.
        work, each: pickled, see `gpuprov.ssh.elsewhere.spread`.
        counted: whether to say at the end how many events there were.
    """

    version: str
    topic: str
    number: int
    work: bytes
    each: bytes


_AT_WORK: dict[tuple[str, int], threading.Event] = {}


def perform(shard: Shard) -> bytes:
    """Do it; returns what came of it, pickled: (node → result, or the error; how many events were told)."""
    import cloudpickle

    if shard.version != VERSION:
        raise InvalidInput(f"has {VERSION}", expected=shard.version)
    worker, told = get_worker(), 0

    def tell(event: dict[str, Any]) -> None:
        nonlocal told
        told += 1
        worker.log_event(shard.topic, {"number": shard.number, EVENT: event})

    stop = threading.Event()
    _AT_WORK[shard.topic, shard.number] = stop
    try:
        with attempting(Attempt(shard.number, str(worker.name), tell, stop)):
            found = _found(shard, str(worker.name))
    finally:
        del _AT_WORK[shard.topic, shard.number]
    answer: bytes = cloudpickle.dumps((found, told))
    return answer


def _found(shard: Shard, worker: str) -> dict[str, Any] | GpuprovError:
    work, each = pickle.loads(shard.work), pickle.loads(shard.each)  # noqa: S301 - from our own controller
    try:
        found = dict(work(each))
    except GpuprovError as error:
        return NodeFailed(f"worker {worker}: {error}")
    return found


def stop(topic: str, numbers: list[int]) -> list[int]:
    """Have attempts end as soon as that is safe; returns those that are still at work."""
    still = [number for number in numbers if (topic, number) in _AT_WORK]
    for number in still:
        _AT_WORK[topic, number].set()
    return still


def host() -> str:
    """The machine that a worker runs on."""
    return platform.node()
