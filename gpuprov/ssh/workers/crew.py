"""A crew of Dask's workers: shards of nodes go to workers of their site, and to others when one is lost.

Each attempt is a task bound to one worker. Dask alone would run it again where and when it likes; here a
later attempt must have a higher number, by which nodes tell it from one that thaws (`gpuprov.apply.hands`).
"""

from __future__ import annotations

import itertools
import pickle
import time
import uuid
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
from gpuprov.ssh.elsewhere import CrewLost, Hear
from gpuprov.ssh.workers.roster import Roster, Worker
from gpuprov.ssh.workers.shard import EVENT, VERSION, Shard, perform, stop

SHARD = 32
"""The most nodes of a shard; a worker's loss costs so many again, and testinfra's process has as many."""
TRIES = 3
LOOK_S = 2.0
STOP_S = 60.0
"""How long what changes nodes may take to end after an interruption: the current task of a play."""
LAST_WORDS_S = 3.0


@dataclass
class _Part:
    """Some nodes of one site, and the workers that were lost over them."""

    names: list[str]
    site: str | None
    lost: list[str] = field(default_factory=list)
    number: int = 0
    worker: Worker | None = None


@dataclass
class _Job:
    """One call of `do`, and what comes in for it: tasks that ended, and events."""

    work: bytes
    each: Mapping[str, Any]
    hear: Hear | None
    changes: bool
    waiting: deque[_Part]
    running: dict[Future, _Part] = field(default_factory=dict)
    inbox: SimpleQueue[Future | dict[str, Any]] = field(default_factory=SimpleQueue)
    heard: dict[int, int] = field(default_factory=dict)


class DaskCrew:
    """See `gpuprov.ssh.elsewhere.Crew`.

    Args:
        sites: node → where it stands; one without a site goes to any worker.
        narrate: gets a line for a person.
    """

    def __init__(
        self, client: Client, sites: Mapping[str, str | None], narrate: Callable[[str], None]
    ) -> None:
        self._client, self._sites, self._narrate = client, sites, narrate
        self.roster = Roster(client)
        self._topic = f"gpuprov-{uuid.uuid4().hex}"
        self._numbers = itertools.count(int(time.time() * 1000))
        self._jobs: dict[int, _Job] = {}

    @contextmanager
    def ready(self) -> Iterator[DaskCrew]:
        """Listening to its workers, once they are known to be of our version and at every site.

        Raises:
            Refused: they are not.
        """
        self.roster.refuse_others({site for site in self._sites.values() if site})
        self._client.subscribe_topic(self._topic, self._receive)
        try:
            yield self
        finally:
            with suppress(OSError, ValueError, ClosedClientError):
                self._client.unsubscribe_topic(self._topic)

    def do(
        self, work: Callable[..., Any], each: Mapping[str, Any], *, hear: Hear | None, changes: bool
    ) -> Iterator[tuple[str, Any]]:
        """See `gpuprov.ssh.elsewhere.spread`.

        Raises:
            CrewLost: the scheduler is gone; says what was where.
        """
        job = _Job(cloudpickle.dumps(work), each, hear, changes, deque(self._parts(each, changes=changes)))
        try:
            while job.waiting or job.running:
                yield from self._start(job)
                yield from self._take_in(job)
                yield from self._look(job)
        finally:
            self._leave(job)

    def _parts(self, each: Mapping[str, Any], *, changes: bool) -> Iterator[_Part]:
        of_site: dict[str | None, list[str]] = {}
        for name in each:
            of_site.setdefault(self._sites.get(name), []).append(name)
        for site, names in of_site.items():
            slots = sum(worker.hands(changes=changes) for worker in self.roster.at(site)) or 1
            size = max(1, min(SHARD, -(-len(names) // slots)))
            for at in range(0, len(names), size):
                yield _Part(names[at : at + size], site)

    def _start(self, job: _Job) -> Iterator[tuple[str, GpuprovError]]:
        """Give parts to workers that have a free hand, those with the most of them first."""
        hands = sum(worker.hands(changes=job.changes) for worker in self.roster.alive.values())
        for _ in range(len(job.waiting)):
            if 0 < hands <= len(job.running):
                return
            part = job.waiting.popleft()
            if len(part.lost) >= TRIES:
                said = f"workers were lost over it: {', '.join(part.lost)}"
                yield from ((name, NodeFailed(said)) for name in part.names)
            elif worker := self._free(job, part):
                self._submit(job, part, worker)
            elif not self.roster.at(part.site) and self.roster.given_up(part.site):
                said = f"no worker {f'of the site {part.site} ' if part.site else ''}is left"
                yield from ((name, Unreachable(said)) for name in part.names)
            else:
                job.waiting.append(part)

    def _free(self, job: _Job, part: _Part) -> Worker | None:
        busy: dict[str, int] = {}
        for each in job.running.values():
            if each.worker:
                busy[each.worker.address] = busy.get(each.worker.address, 0) + 1
        hands = {each.address: each.hands(changes=job.changes) for each in self.roster.at(part.site)}
        fit = [each for each in self.roster.at(part.site) if busy.get(each.address, 0) < hands[each.address]]
        fit.sort(key=lambda each: (each.name in part.lost, busy.get(each.address, 0) / hands[each.address]))
        return fit[0] if fit else None

    def _submit(self, job: _Job, part: _Part, worker: Worker) -> None:
        number = next(self._numbers)
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
        except ClosedClientError:  # the scheduler is gone, which `_look` is about to say
            del self._jobs[number]
            job.waiting.append(part)
            return
        part.number, part.worker = number, worker
        job.running[future] = part
        future.add_done_callback(job.inbox.put)

    def _receive(self, event: tuple[float, dict[str, Any]]) -> None:
        told = event[1]
        if job := self._jobs.get(told["number"]):
            job.inbox.put(told)

    def _take_in(self, job: _Job, seconds: float = LOOK_S) -> Iterator[tuple[str, Any]]:
        """What came in, waited for a while; the end of a part comes after its events."""
        try:
            told = job.inbox.get(timeout=seconds)
        except Empty:
            return
        if isinstance(told, dict):
            self._hear(job, told)
        elif part := job.running.pop(told, None):
            yield from self._ended(job, told, part)

    def _hear(self, job: _Job, told: dict[str, Any]) -> None:
        job.heard[told["number"]] = job.heard.get(told["number"], 0) + 1
        if job.hear and any(part.number == told["number"] for part in job.running.values()):
            job.hear(told[EVENT])

    def _ended(self, job: _Job, future: Future, part: _Part) -> Iterator[tuple[str, Any]]:
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
        found, told = pickle.loads(future.result())  # noqa: S301 - from our own worker
        job.running[future] = part
        self._await_words(job, part.number, told)
        del job.running[future], self._jobs[part.number]
        if isinstance(found, GpuprovError):
            raise found
        yield from found.items()

    def _await_words(self, job: _Job, number: int, count: int) -> None:
        """Events go another way than results, and may be behind."""
        deadline, kept = time.monotonic() + LAST_WORDS_S, []
        while job.heard.get(number, 0) < count and time.monotonic() < deadline:
            with suppress(Empty):
                told = job.inbox.get(timeout=0.1)
                if isinstance(told, dict):
                    self._hear(job, told)
                else:
                    kept.append(told)
        for each in kept:
            job.inbox.put(each)

    def _lose(self, job: _Job, part: _Part) -> None:
        if part.worker:
            part.lost.append(part.worker.name)
        self._jobs.pop(part.number, None)
        job.waiting.append(part)

    def _look(self, job: _Job) -> Iterator[tuple[str, Any]]:
        """See which workers are gone or frozen; what they were at goes to others.

        Raises:
            CrewLost: the scheduler is gone.
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
        """Whoever takes no more results: end what changes nodes where that is safe, and say what is where."""
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
        """Numbers of the attempts that have not ended in time."""
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
            told = {number for answer in answers.values() if isinstance(answer, list) for number in answer}
            silent = {
                number
                for number, part in parts.items()
                if part.worker and not isinstance(answers.get(part.worker.address), list)
            }
            still &= told | silent
            time.sleep(0.5 if still else 0)
        return still


def _where(parts: Iterable[_Part]) -> str:
    said = [f"{fold(part.names)} on worker {part.worker.name}" for part in parts if part.worker]
    return f"; still at work, until their leases end: {'; '.join(said)}" if said else ""


def _of_worker(part: _Part, error: GpuprovError) -> GpuprovError:
    name = part.worker.name if part.worker else "?"
    if isinstance(error, InvalidInput):
        return Refused(f"worker {name} {error.seen}", expected=error.expected)
    return error


def _is_loss(error: BaseException) -> bool:
    """Whether a task ended because its worker did."""
    return type(error).__name__ in ("KilledWorker", "NoValidWorkerError", "FutureCancelledError")
