"""Programs on several nodes, each over one open connection, that receive orders at the same time."""

from __future__ import annotations

import json
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.probe.payload import Answered, parse_answer
from gpuprov.ssh.contained import contained
from gpuprov.ssh.conversation import Conversation

BEYOND_S = 20.0
"""Seconds to wait for a node's answer beyond the limit that the node sets itself."""
LARGEST, VALUES = 2**21, 2**15
"""Limits of one answer, in bytes and values, as those of all nodes are kept at once. NCCL's log has up
to `LOG_LIMIT` characters, a description `PORTS` ports, and an exchange with a thousand nodes 4,000 values.
"""
Result = Mapping[str, Any] | GpuprovError
Order = Mapping[str, Any]
Visits = Callable[[Callable[[str, Callable[[], Conversation]], None]], None]
"""A callable that calls its argument once for each node, in a separate thread. The argument is called with
the node's name and a function that opens the conversation.
"""


class Mesh:
    """A set of nodes that execute orders.

    Args:
        names: the nodes' names.
        visits: see `Visits`; `nodes.over_ssh`, or `here`.
    """

    def __init__(self, names: Iterable[str], visits: Visits) -> None:
        self._orders: dict[str, queue.Queue[tuple[Order, float] | None]] = {
            name: queue.Queue() for name in names
        }
        self._answers: queue.Queue[tuple[str, Result]] = queue.Queue()
        self.gone: dict[str, GpuprovError] = {}
        self._open: dict[str, Conversation] = {}
        self._stopped = False
        self._lock = threading.Lock()
        """Held while a conversation is added to those that an interruption closes."""
        self._thread = threading.Thread(target=lambda: visits(self._visit), daemon=True)

    def __enter__(self) -> Mesh:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all conversations; after an error close them at once, without the outstanding answers."""
        for orders in self._orders.values():
            orders.put(None)
        if error is not None:  # the remaining answers are not read
            with self._lock:
                self._stopped = True
            for conversation in list(self._open.values()):
                conversation.close()
        self._thread.join(2 * BEYOND_S)

    def ask(self, orders: Mapping[str, Order], seconds: float) -> dict[str, Result]:
        """Send each node its order and return node → answer; a node that is gone has its error instead, now
        and for later orders.

        Args:
            seconds: time limit that the node sets itself.
        """
        found: dict[str, Result] = {name: self.gone[name] for name in orders if name in self.gone}
        waiting = set(orders) - set(found)
        for name in waiting:
            self._orders[name].put(({**orders[name], "seconds": seconds}, seconds + BEYOND_S))
        while waiting:
            name, result = self._answers.get()
            if isinstance(result, GpuprovError):
                self.gone[name] = result
            if name in waiting:
                found[name] = result
                waiting.discard(name)
        return {name: found[name] for name in orders}

    def _visit(self, name: str, begin: Callable[[], Conversation]) -> None:
        """Run one node's whole conversation; if it fails, answer every order with the error."""
        failed = contained(name, lambda: self._converse(name, begin))
        if isinstance(failed, GpuprovError):
            self._answers.put((name, failed))

    def _converse(self, name: str, begin: Callable[[], Conversation]) -> None:
        """Pass one node's orders to its conversation until the order is None, then close it; runs in a thread
        for the node.

        Nothing is passed if the mesh was stopped before. The answers, or errors, are put into the common
        queue.
        """
        conversation = begin()
        try:
            with self._lock:
                if self._stopped:
                    return
                self._open[name] = conversation
            while (job := self._orders[name].get()) is not None:
                order, seconds = job
                self._answers.put((name, _asked(conversation, order, seconds)))
        finally:
            self._open.pop(name, None)
            conversation.close()


def _asked(conversation: Conversation, order: Order, seconds: float) -> dict[str, Any]:
    """Send one order and return its answer.

    Raises:
        GpuprovError: there is no answer, and there will be none to later orders.
    """
    nonce = secrets.token_hex(8)
    conversation.say(json.dumps({**order, "nonce": nonce}).encode() + b"\n")
    said, errors = conversation.hear(Answered(nonce), seconds)
    return parse_answer(said, nonce, errors, most=LARGEST, values=VALUES)


def here(names: Iterable[str], begin: Callable[[str], Conversation]) -> Visits:
    """Return the `Visits` of programs on this machine: a thread for each name, all of which it waits for.

    Args:
        begin: starts the program of a name.
    """

    def visits(visit: Callable[[str, Callable[[], Conversation]], None]) -> None:
        def one(name: str) -> None:
            visit(name, lambda: begin(name))

        threads = [threading.Thread(target=one, args=(name,), daemon=True) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return visits


def failed(result: Result) -> GpuprovError | None:
    """Return the error of an answer, also that of an order that failed on the node; None for a success."""
    if isinstance(result, GpuprovError):
        return result
    return NodeFailed(str(result["error"])) if "error" in result else None
