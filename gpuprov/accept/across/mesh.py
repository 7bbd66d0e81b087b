"""Programs on several nodes, each over one open channel, told the same thing at the same time."""

from __future__ import annotations

import json
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.probe.payload import is_answered, parse_answer
from gpuprov.ssh.contained import contained
from gpuprov.ssh.conversation import Conversation

BEYOND_S = 20.0
"""A node ends what lasts too long by itself; its answer is waited for so much longer."""
Told = Mapping[str, Any] | GpuprovError
Order = Mapping[str, Any]
Visits = Callable[[Callable[[str, Callable[[], Conversation]], None]], None]
"""Calls its argument once for every node, in a thread of its own, with what begins the conversation."""


class Mesh:
    """Nodes that take orders.

    Args:
        names: of the nodes.
        visits: see `Visits`; `nodes.over_ssh`, or `here`.
    """

    def __init__(self, names: Iterable[str], visits: Visits) -> None:
        self._orders: dict[str, queue.Queue[tuple[Order, float] | None]] = {
            name: queue.Queue() for name in names
        }
        self._answers: queue.Queue[tuple[str, Told]] = queue.Queue()
        self.gone: dict[str, GpuprovError] = {}
        self._open: dict[str, Conversation] = {}
        self._thread = threading.Thread(target=lambda: visits(self._visit), daemon=True)

    def __enter__(self) -> Mesh:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for orders in self._orders.values():
            orders.put(None)
        if error is not None:  # no one waits for answers that are still to come
            for conversation in list(self._open.values()):
                conversation.close()
        self._thread.join(2 * BEYOND_S)

    def ask(self, orders: Mapping[str, Order], seconds: float) -> dict[str, Told]:
        """Every node's answer to its order; one that is gone has its reason.

        Args:
            seconds: that the node gives itself.
        """
        found: dict[str, Told] = {name: self.gone[name] for name in orders if name in self.gone}
        waiting = set(orders) - set(found)
        for name in waiting:
            self._orders[name].put(({**orders[name], "seconds": seconds}, seconds + BEYOND_S))
        while waiting:
            name, told = self._answers.get()
            if isinstance(told, GpuprovError):
                self.gone[name] = told
            if name in waiting:
                found[name] = told
                waiting.discard(name)
        return {name: found[name] for name in orders}

    def _visit(self, name: str, begin: Callable[[], Conversation]) -> None:
        """One node's whole conversation; however it ends, every order has an answer."""
        failed = contained(name, lambda: self._converse(name, begin))
        if isinstance(failed, GpuprovError):
            self._answers.put((name, failed))

    def _converse(self, name: str, begin: Callable[[], Conversation]) -> None:
        conversation = self._open[name] = begin()
        try:
            while (job := self._orders[name].get()) is not None:
                order, seconds = job
                self._answers.put((name, _asked(conversation, order, seconds)))
        finally:
            del self._open[name]
            conversation.close()


def _asked(conversation: Conversation, order: Order, seconds: float) -> dict[str, Any]:
    """One order and its answer.

    Raises:
        GpuprovError: there is none, and there will be none to another.
    """
    nonce = secrets.token_hex(8)
    conversation.say(json.dumps({**order, "nonce": nonce}).encode() + b"\n")
    said, errors = conversation.hear(lambda text: is_answered(text, nonce), seconds)
    return parse_answer(said, nonce, errors)


def here(names: Iterable[str], begin: Callable[[str], Conversation]) -> Visits:
    """Conversations with programs of this machine."""

    def visits(visit: Callable[[str, Callable[[], Conversation]], None]) -> None:
        def one(name: str) -> None:
            visit(name, lambda: begin(name))

        threads = [threading.Thread(target=one, args=(name,), daemon=True) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return visits


def failed(told: Told) -> GpuprovError | None:
    """Why an answer is none, if so."""
    if isinstance(told, GpuprovError):
        return told
    return NodeFailed(str(told["error"])) if "error" in told else None
