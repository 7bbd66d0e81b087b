"""Dask workers of one site: they get shards of nodes; if a worker is lost, others get its shards.

This code runs in the service of the site (`gpuprov.ssh.workers.service`) and never in a controller: Dask
unpickles data from its scheduler and its workers.

Each attempt is a task bound to one worker. Dask by itself would run it again at any time on any worker. Here
a later attempt has a higher number, by which nodes distinguish it from an earlier one that resumes after a
freeze (`gpuprov.apply.attempts`).
"""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import cloudpickle
from distributed import Client, Future
from distributed.client import ClosedClientError

from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed, Refused, Unreachable
from gpuprov.model.nodeset import fold
from gpuprov.ssh.dispatch import CrewLost
from gpuprov.ssh.workers.roster import Roster, Worker
from gpuprov.ssh.workers.shard import EVENT, Shard, perform, stop
from gpuprov.ssh.workers.version import VERSION

SHARD = 32
"""Maximum number of nodes in a shard: the loss of a worker repeats the work on as many, and one testinfra
process tests as many."""
TRIES = 3
LOOK_S = 2.0
STOP_S = 60.0
"""Seconds for work that changes nodes to end after an interruption: the current task of a play."""
LAST_WORDS_S = 3.0


@dataclass
class _Part:
    """A shard of nodes, and the workers that were lost during its attempts."""

    names: list[str]
    lost: list[str] = field(default_factory=list)
    number: int = 0
    worker: Worker | None = None


@dataclass
class _Job:
    """One call of `do`; `inbox` receives tasks that ended, and events."""

    work: bytes
    each: Mapping[str, Any]
    hear: Callable[[int, Any], None]
    changes: bool
    waiting: deque[_Part]
    numbers: Iterator[int]
    running: dict[Future, _Part] = field(default_factory=dict)
    inbox: SimpleQueue[Future | dict[str, Any]] = field(default_factory=SimpleQueue)
    heard: dict[int, int] = field(default_factory=dict)


class DaskCrew:
    """Workers of one scheduler.

    Args:
        narrate: called with each line for the user.
    """

    def __init__(self, client: Client, narrate: Callable[[str], None]) -> None:
        self._client, self._narrate = client, narrate
        self.roster = Roster(client)
        self._topic = client.id  # Dask removes the events of this topic an hour after the client has left
        self._jobs: dict[int, _Job] = {}

    @contextmanager
    def ready(self) -> Iterator[DaskCrew]:
        """Receive the workers' events within the context, after a check that they have this version.

        Raises:
            Refused: there are no workers, or one has another version.
            Unreachable: a worker does not answer.
        """
        self.roster.refuse_others()
        self._client.subscribe_topic(self._topic, self._receive)
        try:
            yield self
        finally:
            with suppress(OSError, ValueError, ClosedClientError):
                self._client.unsubscribe_topic(self._topic)

    def do(
        self,
        work: Callable[..., Any],
        each: Mapping[str, Any],
        *,
        hear: Callable[[int, Any], None],
        changes: bool,
        first: int,
        over: threading.Event,
    ) -> Iterator[Mapping[str, Any]]:
        """Do work on nodes; yield results of some of them at a time, as they become ready.

        Args:
            hear: called with the number of an attempt and an event.
            first: the number of the first attempt; later ones have higher numbers.
            over: set when no more results are wanted.

        Raises:
            CrewLost: the scheduler cannot be reached; the message names nodes that may still be changed.
            GpuprovError: a task failed for another reason than the loss of its worker.
        """
        waiting = deque(self._parts(each, changes=changes))
        job = _Job(cloudpickle.dumps(work), each, hear, changes, waiting, itertools.count(first))
        try:
            while (job.waiting or job.running) and not over.is_set():
                yield from self._start(job)
                yield from self._collect(job)
                yield from self._look(job)
        finally:
            self._leave(job)

    def _parts(self, each: Mapping[str, Any], *, changes: bool) -> Iterator[_Part]:
        """Yield the nodes in shards: one for each slot of the workers, more if they exceed `SHARD` nodes."""
        names = list(each)
        slots = sum(worker.slots(changes=changes) for worker in self.roster.alive.values()) or 1
        size = max(1, min(SHARD, -(-len(names) // slots)))
        for at in range(0, len(names), size):
            yield _Part(names[at : at + size])

    def _start(self, job: _Job) -> Iterator[Mapping[str, GpuprovError]]:
        """Assign parts to workers with a free slot, least loaded first; yield failures of parts given up.

        A part is given up after `TRIES` lost workers, or if there has been no worker for a while; the others
        stay in the queue.
        """
        slots = sum(worker.slots(changes=job.changes) for worker in self.roster.alive.values())
        for _ in range(len(job.waiting)):
            if 0 < slots <= len(job.running):
                return
            part = job.waiting.popleft()
            if len(part.lost) >= TRIES:
                said = f"workers were lost while they worked on it: {', '.join(part.lost)}"
                yield dict.fromkeys(part.names, NodeFailed(said))
            elif worker := self._free(job, part):
                self._submit(job, part, worker)
            elif self.roster.given_up():
                yield dict.fromkeys(part.names, Unreachable("no worker is left"))
            else:
                job.waiting.append(part)

    def _free(self, job: _Job, part: _Part) -> Worker | None:
        """Return the least loaded worker with a free slot, or None.

        Workers that were lost during earlier attempts at the part come last.
        """
        busy: dict[str, int] = {}
        for each in job.running.values():
            if each.worker:
                busy[each.worker.address] = busy.get(each.worker.address, 0) + 1
        alive = self.roster.alive.values()
        slots = {each.address: each.slots(changes=job.changes) for each in alive}
        fit = [each for each in alive if busy.get(each.address, 0) < slots[each.address]]
        fit.sort(key=lambda each: (each.name in part.lost, busy.get(each.address, 0) / slots[each.address]))
        return fit[0] if fit else None

    def _submit(self, job: _Job, part: _Part, worker: Worker) -> None:
        """Start an attempt at a part on a worker.

        If the connection to the scheduler is lost, return the part to the queue.
        """
        number = next(job.numbers)
        self._jobs[number] = job
        of_part = cloudpickle.dumps({name: job.each[name] for name in part.names})
        try:
            future = self._client.submit(
                perform,
                Shard(VERSION, self._topic, number, job.work, of_part),
                key=f"gpuprov-{'change' if job.changes else 'look'}-{number}",
                workers=[worker.address],
                allow_other_workers=False,
                pure=False,
                priority=0 if job.changes else 10,
            )
        except ClosedClientError:  # the connection to the scheduler is lost; `_look` reports it
            del self._jobs[number]
            job.waiting.append(part)
            return
        part.number, part.worker = number, worker
        job.running[future] = part
        future.add_done_callback(job.inbox.put)

    def _receive(self, event: tuple[float, dict[str, Any]]) -> None:
        """Pass a worker's event to its job, in Dask's thread; drop it if the job has ended, or if it is one
        of Dask's own about the client.
        """
        message = event[1]
        if job := self._jobs.get(message.get("number", 0)):
            job.inbox.put(message)

    def _collect(self, job: _Job, seconds: float = LOOK_S) -> Iterator[Mapping[str, Any]]:
        """Wait at most `seconds` for an event or an ended task, and process it; yield results of the task.

        Nothing is yielded if there is no event in time. Raises as `_ended`.
        """
        try:
            message = job.inbox.get(timeout=seconds)
        except Empty:
            return
        if isinstance(message, dict):
            self._hear(job, message)
        elif part := job.running.pop(message, None):
            yield from self._ended(job, message, part)

    def _hear(self, job: _Job, message: dict[str, Any]) -> None:
        """Count an event, and pass it on if its attempt is still running."""
        job.heard[message["number"]] = job.heard.get(message["number"], 0) + 1
        if any(part.number == message["number"] for part in job.running.values()):
            job.hear(message["number"], message[EVENT])

    def _ended(self, job: _Job, future: Future, part: _Part) -> Iterator[Mapping[str, Any]]:
        """Yield the results of an ended part; if its worker was lost, return the part to the queue and yield
        nothing.

        Raises:
            GpuprovError: the task failed for another reason; the message names the worker.
        """
        if future.status != "finished":
            error = future.exception() if future.status == "error" else None
            if isinstance(error, GpuprovError):
                raise _of_worker(part, error)
            if error is not None and not _is_loss(error):
                raise NodeFailed(
                    f"worker {part.worker and part.worker.name}: {type(error).__name__}: {error}"
                )
            self._lose(job, part)
            return
        found, message = pickle.loads(future.result())  # noqa: S301 - from a worker of the same site
        job.running[future] = part
        self._await_words(job, part.number, message)
        del job.running[future], self._jobs[part.number]
        if isinstance(found, GpuprovError):
            found = dict.fromkeys(part.names, found)
        yield found

    def _await_words(self, job: _Job, number: int, count: int) -> None:
        """Process outstanding events of a part: they are sent separately, and may arrive after the result.

        Wait for them at most `LAST_WORDS_S` seconds.
        """
        deadline, kept = time.monotonic() + LAST_WORDS_S, []
        while job.heard.get(number, 0) < count and time.monotonic() < deadline:
            with suppress(Empty):
                message = job.inbox.get(timeout=0.1)
                if isinstance(message, dict):
                    self._hear(job, message)
                else:
                    kept.append(message)
        for each in kept:
            job.inbox.put(each)

    def _lose(self, job: _Job, part: _Part) -> None:
        """Return a part to the queue, and record the worker that was lost."""
        if part.worker:
            part.lost.append(part.worker.name)
        self._jobs.pop(part.number, None)
        job.waiting.append(part)

    def _look(self, job: _Job) -> Iterator[Mapping[str, Any]]:
        """Detect lost and frozen workers, and return their parts to the queue.

        Raises:
            CrewLost: the scheduler cannot be reached.
        """
        try:
            fresh = self.roster.look()
        except CrewLost as error:
            where = _where([*job.running.values(), *job.waiting]) if job.changes else ""
            job.running.clear()
            raise CrewLost(error.seen + where, do=error.do) from None
        if fresh:
            for future, part in list(job.running.items()):
                if part.worker and part.worker.address not in self.roster.alive and not future.done():
                    del job.running[future]
                    future.cancel()
                    self._lose(job, part)
        yield from ()

    def _leave(self, job: _Job) -> None:
        """End changes of nodes where that is safe, report those that continue, and cancel all tasks."""
        left = {part.number: part for part in job.running.values()}
        for number in left:
            self._jobs.pop(number, None)
        if left and job.changes:
            still = self._stop(left)
            if still:
                self._narrate(
                    "interrupted" + _where(part for number, part in left.items() if number in still)
                )
        for future in job.running:
            future.cancel()

    def _stop(self, parts: Mapping[int, _Part]) -> set[int]:
        """Ask workers to stop attempts, for at most `STOP_S` seconds; return the numbers of those that have
        not ended.

        Attempts of a worker that does not answer are among them.
        """
        deadline, still = time.monotonic() + STOP_S, set(parts)
        while still and time.monotonic() < deadline:
            addresses = [part.worker.address for part in parts.values() if part.worker]
            alive = [address for address in dict.fromkeys(addresses) if address in self.roster.alive]
            if not alive:
                break
            try:
                answers = self.roster.ask(alive, stop, self._topic, sorted(still))
                self.roster.look()
            except (OSError, ValueError, CrewLost):
                break
            message = {number for answer in answers.values() if isinstance(answer, list) for number in answer}
            silent = {
                number
                for number, part in parts.items()
                if part.worker and not isinstance(answers.get(part.worker.address), list)
            }
            still &= message | silent
            time.sleep(0.5 if still else 0)
        return still


def _where(parts: Iterable[_Part]) -> str:
    """Return the nodes that are still being changed, with their workers, for the end of a message.

    Empty if no part has a worker.
    """
    said = [f"{fold(part.names)} on worker {part.worker.name}" for part in parts if part.worker]
    return f"; still running, until their leases end: {'; '.join(said)}" if said else ""


def _of_worker(part: _Part, error: GpuprovError) -> GpuprovError:
    """Return the error of a task; if the worker has another version, a refusal that names the worker."""
    name = part.worker.name if part.worker else "?"
    if isinstance(error, InvalidInput):
        return Refused(f"worker {name} {error.seen}", expected=error.expected)
    return error


def _is_loss(error: BaseException) -> bool:
    """Return whether a task ended because its worker was lost."""
    return type(error).__name__ in ("KilledWorker", "NoValidWorkerError", "FutureCancelledError")
