"""The workers that a scheduler knows: who is alive, and of which version."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from distributed import Client

from gpuprov.errors import GpuprovError, Refused, Unreachable
from gpuprov.ssh.elsewhere import CrewLost
from gpuprov.ssh.workers.version import VERSION

LOOK_S = 2.0
ANSWER_S = 5.0
ASK_S = 15.0
SILENT_S = 30.0
"""A worker tells its scheduler every few seconds that it is there; one that has not for so long is frozen,
or cut off."""
GONE_S = 10.0
"""How long a scheduler may not answer."""
AWAITED_S = 60.0
"""How long a scheduler may be without a worker."""


@dataclass(frozen=True)
class Worker:
    """One worker; `slots` is how many shards it has at a time.

    What changes nodes leaves one of them free: leases have to be renewed meanwhile.
    """

    address: str
    name: str
    slots: int

    def hands(self, *, changes: bool) -> int:
        """How many shards it may have at a time."""
        return max(1, self.slots - 1) if changes else self.slots


class Roster:
    """See the module."""

    def __init__(self, client: Client) -> None:
        self._client, self._address = client, client.scheduler.address
        self.alive: dict[str, Worker] = {}
        self._told: dict[str, tuple[Any, float]] = {}
        self._looked = self._answered = time.monotonic()
        self._missing: float | None = None
        self._read(client.scheduler_info(n_workers=-1))

    def look(self) -> bool:
        """Look again, if it is time; whether it was.

        Raises:
            CrewLost: the scheduler has not answered for `GONE_S`.
        """
        if time.monotonic() - self._looked < LOOK_S:
            return False
        try:
            info = self._client.sync(self._client.scheduler.identity, callback_timeout=ANSWER_S)
        except Exception:  # noqa: BLE001 - whatever Dask makes of a connection that is gone
            if time.monotonic() - self._answered > GONE_S:
                raise CrewLost(
                    f"the scheduler at {self._address} does not answer any more",
                    do="start it again, then the same command",
                ) from None
            time.sleep(0.5)
            return False
        self._answered = self._looked = time.monotonic()
        self._read(info)
        return True

    def given_up(self) -> bool:
        """Return whether there was no worker for so long that none is waited for any more."""
        return self._missing is not None and time.monotonic() - self._missing > AWAITED_S

    def refuse_others(self) -> None:
        """Refuse workers of another version, and to be without any.

        Raises:
            Refused: says which.
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
            raise Unreachable(f"not all of the workers {names} answer", do="is one of them frozen?") from None
        for address in addresses:
            if answers[address] != VERSION:
                raise _other_version(self.alive[address], answers[address])

    def ask(
        self, addresses: Collection[str], function: Callable[..., Any], *arguments: Any
    ) -> dict[str, Any]:
        """Have workers answer at once, whatever they are at; address → answer, or what went wrong.

        Raises:
            TimeoutError: not all have answered.
        """
        how = {"workers": list(addresses), "on_error": "return", "callback_timeout": ASK_S}
        answers: dict[str, Any] = self._client.sync(self._client._run, function, *arguments, **how)
        return answers

    def _read(self, info: Any) -> None:
        now, alive = time.monotonic(), {}
        for address, each in info["workers"].items():
            told, since = self._told.get(address, (None, now))
            if told != each["last_seen"]:
                since = now
            self._told[address] = (each["last_seen"], since)
            if now - since < SILENT_S:
                alive[address] = _worker(address, each)
        self.alive = alive
        self._missing = None if alive else self._missing or now


def _worker(address: str, told: Any) -> Worker:
    return Worker(address, str(told["name"]), max(1, told["nthreads"]))


def _version_asker() -> Any:
    """A function that travels as it is: a worker without gpuprov can say so."""

    def version() -> str:
        import sys

        try:
            import gpuprov
        except ImportError:
            return "no gpuprov"
        return f"gpuprov {gpuprov.__version__} on Python {sys.version_info.major}.{sys.version_info.minor}"

    return version


def _other_version(worker: Worker, answer: Any) -> GpuprovError:
    return Refused(
        f"worker {worker.name} at {worker.address} has {answer}",
        expected=VERSION,
        do="install the same there, and start it again",
    )
