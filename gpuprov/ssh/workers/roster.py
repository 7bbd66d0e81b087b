"""List of a scheduler's workers: which of them are alive, and which version they have."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from distributed import Client

from gpuprov.errors import GpuprovError, Refused, Unreachable
from gpuprov.ssh.dispatch import CrewLost
from gpuprov.ssh.workers.version import VERSION

LOOK_S = 2.0
ANSWER_S = 5.0
ASK_S = 15.0
SILENT_S = 30.0
"""Workers send heartbeats to their scheduler every few seconds; one without a heartbeat for so long is
frozen, or disconnected."""
GONE_S = 10.0
"""Seconds without an answer after which a scheduler is lost."""
AWAITED_S = 60.0
"""Seconds for which a scheduler may be without a worker."""


@dataclass(frozen=True)
class Worker:
    """A worker; `threads` is the number of shards that it can process at a time.

    Work that changes nodes leaves one slot free, with which leases are renewed.
    """

    address: str
    name: str
    threads: int

    def slots(self, *, changes: bool) -> int:
        """Return the number of shards that the worker may have at a time."""
        return max(1, self.threads - 1) if changes else self.threads


class Roster:
    """The workers of one scheduler; `alive` maps addresses to workers."""

    def __init__(self, client: Client) -> None:
        self._client, self._address = client, client.scheduler.address
        self.alive: dict[str, Worker] = {}
        self._last_messages: dict[str, tuple[Any, float]] = {}
        self._looked = self._answered = time.monotonic()
        self._missing: float | None = None
        self._read(client.scheduler_info(n_workers=-1))

    def look(self) -> bool:
        """Update the list, at most every `LOOK_S` seconds; return whether it was updated.

        It is not if the scheduler does not answer within `ANSWER_S`.

        Raises:
            CrewLost: the scheduler has not answered for `GONE_S`.
        """
        if time.monotonic() - self._looked < LOOK_S:
            return False
        try:
            info = self._client.sync(self._client.scheduler.identity, callback_timeout=ANSWER_S)
        except Exception:  # noqa: BLE001 - Dask raises various errors for a closed connection
            if time.monotonic() - self._answered > GONE_S:
                raise CrewLost(
                    f"the scheduler at {self._address} no longer answers",
                    do="start it again, then run the same command",
                ) from None
            time.sleep(0.5)
            return False
        self._answered = self._looked = time.monotonic()
        self._read(info)
        return True

    def given_up(self) -> bool:
        """Return whether there has been no worker for longer than `AWAITED_S`."""
        return self._missing is not None and time.monotonic() - self._missing > AWAITED_S

    def refuse_others(self) -> None:
        """Check that there are workers, and that all have this version.

        Raises:
            Refused: there are no workers, or one has another version; the message names it.
            Unreachable: not all workers answer.
        """
        if not self.alive:
            raise Refused(
                f"the scheduler at {self._address} has no workers", do=f"dask worker {self._address}"
            )
        addresses = sorted(self.alive, key=lambda address: self.alive[address].name)
        try:
            answers = self.ask(addresses, _version_asker())
        except TimeoutError:
            names = ", ".join(self.alive[address].name for address in addresses)
            raise Unreachable(
                f"not all of the workers {names} answer", do="check whether one of them hangs"
            ) from None
        for address in addresses:
            if answers[address] != VERSION:
                raise _other_version(self.alive[address], answers[address])

    def ask(
        self, addresses: Collection[str], function: Callable[..., Any], *arguments: Any
    ) -> dict[str, Any]:
        """Call a function on workers immediately, also on busy ones; return address → result or exception.

        Raises:
            TimeoutError: not all have answered.
        """
        how = {"workers": list(addresses), "on_error": "return", "callback_timeout": ASK_S}
        answers: dict[str, Any] = self._client.sync(self._client._run, function, *arguments, **how)
        return answers

    def _read(self, info: Any) -> None:
        """Update `alive` from the scheduler's data, without workers that sent no heartbeat for `SILENT_S`."""
        now, alive = time.monotonic(), {}
        for address, each in info["workers"].items():
            message, since = self._last_messages.get(address, (None, now))
            if message != each["last_seen"]:
                since = now
            self._last_messages[address] = (each["last_seen"], since)
            if now - since < SILENT_S:
                alive[address] = _worker(address, each)
        self.alive = alive
        self._missing = None if alive else self._missing or now


def _worker(address: str, message: Any) -> Worker:
    """Return the worker at an address, from the scheduler's data about it."""
    return Worker(address, str(message["name"]), max(1, message["nthreads"]))


def _version_asker() -> Any:
    """Return a function that reports a worker's version of gpuprov and Python, like `VERSION`.

    It is pickled by value, so that workers without gpuprov can run it, too.
    """

    def version() -> str:
        import sys

        try:
            import gpuprov
        except ImportError:
            return "no gpuprov"
        return f"gpuprov {gpuprov.__version__} on Python {sys.version_info.major}.{sys.version_info.minor}"

    return version


def _other_version(worker: Worker, answer: Any) -> GpuprovError:
    """Return the refusal of a worker with another version."""
    return Refused(
        f"worker {worker.name} at {worker.address} has {answer}",
        expected=VERSION,
        do="install that version there, and start it again",
    )
