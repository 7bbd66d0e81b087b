"""Services of sites as a controller's workers: each is trusted with the nodes of the site in its certificate.

A service sends JSON of limited size, validated against the type of the answer. Answers are accepted only for
the nodes of the order, once for each; others are dropped. This module neither imports Dask nor unpickles.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from gpuprov.errors import GpuprovError, NodeFailed, Refused, Unreachable
from gpuprov.model.nodeset import fold
from gpuprov.ssh.answers import read_answer, read_error
from gpuprov.ssh.contained import contained
from gpuprov.ssh.dispatch import CrewLost, Hear, Part
from gpuprov.ssh.workers.wire import Closed, Message, Stream, call, field
from gpuprov.untrusted import on_one_line

PING_S = 2.0
GONE_S = 20.0
"""Seconds without a byte after which a service is lost."""
QUIET_S = 4 * 3600.0
"""Seconds without a message about an order, except answers to pings, after which its service is lost: a
playbook ends after 3.5 h without an event."""
ORDER_S = 48 * 3600.0
"""Seconds for a whole order, after which its service is lost."""
LOOK_S = 1.0
STOP_S = 75.0
"""Seconds for work that changes nodes to end after an interruption; the service itself waits for 60 s."""
NODE_BYTES = 64 << 20
"""Maximum size of all messages of a service about an order, for each node and once more.

No node uses the part of another one: its answer has at most `wire.MESSAGE_BYTES`, and the events and files of
an attempt have less than half of that (`gpuprov_jsonl.ALL`, `FILE_CHARACTERS`).
"""
UNREAD_BYTES = 128 << 20
"""Maximum memory of a service's messages that no thread has processed; more are not read until one has.

One more message can be waiting. A service gives up after `wire.SEND_S` seconds in which nothing is read.
"""
PAUSE_S = 0.01
COST = 512
"""Bytes that are added for each message, since many empty messages fill the memory, too."""
NUMBERS, NUMBERS_EACH = 64, 8
"""Attempt numbers reserved for an order: a fixed count, and a count for each of its nodes."""


_Inbox = SimpleQueue["tuple[_Order, Message, int]"]
"""Messages with their order, and their memory in bytes."""


@dataclass
class _Order:
    """Nodes that a service has to work on, in order and each found at once; `waiting` are those without an
    answer so far.
    """

    id: int
    link: Link
    names: KeysView[str]
    numbers: range
    inbox: _Inbox
    waiting: set[str]
    room: int
    received: int = 0
    """Memory of all messages in the inbox, also of processed ones; only the loop's thread changes it."""
    processed: int = 0
    """Memory of the processed ones; only the thread of the order changes it."""
    began: float = dataclass_field(default_factory=time.monotonic)
    heard: float = dataclass_field(default_factory=time.monotonic)
    """Times of the order and of the last message about it that was processed."""

    @property
    def late(self) -> bool:
        """Whether the service has exceeded a time limit of the order."""
        now = time.monotonic()
        return now - self.heard > QUIET_S or now - self.began > ORDER_S


class Link:
    """Connection to one service. `site` is the site in its certificate; None for workers of this machine."""

    def __init__(self, stream: Stream, site: str | None, where: str) -> None:
        self.site, self.where, self.stream = site, where, stream
        self.lost = ""
        self.orders: dict[int, _Order] = {}

    @property
    def name(self) -> str:
        """Name of the service in messages."""
        return f"the service of {self.site} at {self.where}" if self.site else "the workers of this machine"

    def abort(self) -> None:
        """Close the connection, in the loop's thread."""
        self.stream.abort()

    def send(self, message: Message, then: bytes | None = None) -> None:
        """Send a message; a service that does not accept it is lost."""
        try:
            self.stream.send(message, then=then)
        except Closed as error:
            self.lost = self.lost or str(error)

    async def run(self) -> None:
        """Read the service's messages until it is lost; then wake the threads that wait for its orders."""
        beat = asyncio.create_task(self._beat())
        try:
            while True:
                await self._room()
                self._take(await self.stream.read())
        except (Closed, NodeFailed) as error:
            self.lost = self.lost or str(error)
        finally:
            beat.cancel()
            self.stream.abort()
            for order in list(self.orders.values()):
                order.inbox.put((order, {}, 0))  # wakes the thread that waits for the order

    async def _room(self) -> None:
        """Wait until enough messages are processed; a service whose messages wait is not silent."""
        while sum(order.received - order.processed for order in list(self.orders.values())) > UNREAD_BYTES:
            await asyncio.sleep(PAUSE_S)
            self.stream.heard = time.monotonic()

    def _take(self, message: Message) -> None:
        """Put a message into the inbox of its order; drop it if there is no such order.

        A line for the user, which has no order, is put into the inbox of the oldest.

        Raises:
            NodeFailed: the service has sent more than the limit of the order.
        """
        number = message.get("id")
        if message.get("say") == "line":
            orders = list(self.orders.values())[:1]
        else:
            orders = [self.orders[number]] if isinstance(number, int) and number in self.orders else []
        for order in orders:
            order.room -= self.stream.size + COST
            if order.room < 0:
                raise NodeFailed("sent more than the limit of an order")
            memory = self.stream.memory + COST
            order.received += memory
            order.inbox.put((order, message, memory))

    async def _beat(self) -> None:
        """Send pings without end; close the connection after `GONE_S` seconds without a byte."""
        while True:
            if time.monotonic() - self.stream.heard > GONE_S:
                self.lost = "no longer answers"
                self.stream.abort()
            with suppress(Closed):
                await self.stream.write({"say": "ping"})
            await asyncio.sleep(PING_S)


class SiteCrew:
    """Workers of all services, see `gpuprov.ssh.dispatch.Crew`.

    Args:
        links: connections to all services.
        sites: node → its site; a node without a site can be assigned to any service.
        narrate: called with each line for the user.
    """

    def __init__(
        self, links: list[Link], sites: Mapping[str, str | None], narrate: Callable[[str], None]
    ) -> None:
        self._links, self._sites, self._narrate = links, sites, narrate
        self._orders = itertools.count(1)
        self._looks, self._changes = 1, 0

    def refuse_missing(self) -> None:
        """Check that each site has a service with a certificate for it.

        Raises:
            Refused: a site has no service; the message names it.
        """
        for site in sorted({site for site in self._sites.values() if site}):
            if not self._at(site):
                known = ", ".join(sorted({link.site for link in self._links if link.site}))
                raise Refused(
                    f"no service has a certificate of the site {site}; connected: {known}",
                    do=f"gpuprov workers serve, there, with a certificate of {site}",
                )

    def _at(self, site: str | None) -> list[Link]:
        """Return the services for nodes of a site, also lost ones; without a site all services."""
        return [link for link in self._links if site is None or link.site in (site, None)]

    def do(
        self, part: Part[Any, Any], each: Mapping[str, Any], *, answer: Any, hear: Hear | None, changes: bool
    ) -> Iterator[tuple[str, Any]]:
        """Do work on nodes, see `gpuprov.ssh.dispatch.spread`; yield results as services report them.

        The result of an unanswered node of a lost site is Unreachable. At the end, orders that still run are
        stopped.

        Raises:
            CrewLost: no service is left; the message names nodes that may still be changed.
        """
        inbox: _Inbox = SimpleQueue()
        orders: dict[int, _Order] = {}
        try:
            for link, names in self._shares(each):
                order = self._order(link, names, inbox, changes=changes)
                orders[order.id] = link.orders[order.id] = order
                work = _pickled((part(names), answer, {name: each[name] for name in names}))
                message = {"say": "order", "id": order.id, "changes": changes, "first": order.numbers.start}
                link.send(message, work)
            while orders:
                with suppress(Empty):
                    order, message = _next(inbox)
                    yield from self._take(orders, order, message, answer, hear, changes=changes)
                for order in [order for order in orders.values() if order.late and not order.link.lost]:
                    order.link.send({"say": "stop", "id": order.id})
                    order.link.lost = order.link.lost or "exceeded the time limit of an order"
                for order in [order for order in orders.values() if order.link.lost]:
                    said = f"{order.link.name} {order.link.lost}"
                    yield from self._lose(orders, order, on_one_line(said), changes=changes)
        finally:
            self._leave(orders, inbox, changes=changes)

    def _shares(self, each: Mapping[str, Any]) -> Iterator[tuple[Link, tuple[str, ...]]]:
        """Yield each service with its nodes; nodes of a site are divided equally among its services.

        Services that are lost get none, unless all of the site are lost.
        """
        of_link: dict[int, list[str]] = {}
        of_site: dict[str | None, list[str]] = {}
        for name in each:
            of_site.setdefault(self._sites.get(name), []).append(name)
        for site, names in of_site.items():
            there = self._at(site)
            able = [link for link in there if not link.lost] or there
            size = -(-len(names) // len(able))
            for number, link in enumerate(able):
                of_link.setdefault(self._links.index(link), []).extend(names[number * size :][:size])
        yield from ((self._links[at], tuple(names)) for at, names in of_link.items() if names)

    def _order(self, link: Link, names: tuple[str, ...], inbox: _Inbox, *, changes: bool) -> _Order:
        """Return a new order for a service, with reserved numbers for its attempts.

        Numbers for changes start at the time in milliseconds, so that a later run has higher ones.
        """
        span = NUMBERS + NUMBERS_EACH * len(names)
        if changes:
            first = self._changes = max(self._changes, int(time.time() * 1000))
            self._changes += span
        else:
            first, self._looks = self._looks, self._looks + span
        room = NODE_BYTES * (1 + len(names))
        known = dict.fromkeys(names).keys()
        return _Order(next(self._orders), link, known, range(first, first + span), inbox, set(names), room)

    def _take(
        self,
        orders: dict[int, _Order],
        order: _Order,
        message: Message,
        answer: Any,
        hear: Hear | None,
        *,
        changes: bool,
    ) -> Iterator[tuple[str, Any]]:
        """Process a message of an order; yield results. A message that is invalid, or of an order that has
        ended, is dropped, and its nodes remain without an answer.
        """
        if order.id not in orders:
            return
        with suppress(NodeFailed):
            match message.get("say"):
                case "answer" | "failed":
                    yield from self._answered(order, message, answer)
                case "event" if hear and field(message, "number", int) in order.numbers:
                    hear(order.names, message["number"], message.get("event"))
                case "line":
                    self._narrate(on_one_line(field(message, "text", str)))
                case "end":
                    yield from self._ended(orders, order, message, changes=changes)

    def _answered(self, order: _Order, message: Message, answer: Any) -> Iterator[tuple[str, Any]]:
        """Yield a node with the result or the error in a message; nothing if the node is not waited for."""
        name = message.get("node")
        if not isinstance(name, str) or name not in order.waiting:
            return  # another service's node, or one with an answer
        order.waiting.discard(name)
        found = contained(name, partial(_read, order.link, name, message, answer))
        yield name, found

    def _ended(
        self, orders: dict[int, _Order], order: _Order, message: Message, *, changes: bool
    ) -> Iterator[tuple[str, Any]]:
        """Process the end of an order: yield failures for its nodes without an answer.

        Raises:
            CrewLost: the service has lost its workers; see `_lose`.
        """
        error: GpuprovError = NodeFailed(f"{order.link.name} sent no answer")
        with suppress(ValueError):
            error = read_error(message.get("error"))
        if message.get("lost") is True:
            yield from self._lose(orders, order, error.seen, error.do, changes=changes)
            return
        self._forget(orders, order)
        yield from ((name, error) for name in order.names if name in order.waiting)

    def _lose(
        self, orders: dict[int, _Order], order: _Order, said: str, do: str = "", *, changes: bool
    ) -> Iterator[tuple[str, Any]]:
        """Yield failures for the unanswered nodes of an order whose service is lost.

        Raises:
            CrewLost: no other service is left.
        """
        self._forget(orders, order)
        order.link.lost = order.link.lost or said
        do = do or "start it again, then run the same command"
        if changes and order.waiting and "still running" not in said:
            said += f"; still running, until their leases end: {fold(order.waiting)}"
        if all(link.lost for link in self._links):
            raise CrewLost(said, do=do)
        yield from ((name, Unreachable(said, do=do)) for name in order.names if name in order.waiting)

    def _forget(self, orders: dict[int, _Order], order: _Order) -> None:
        """Remove an order; later messages about it are dropped."""
        orders.pop(order.id, None)
        order.link.orders.pop(order.id, None)

    def _leave(self, orders: dict[int, _Order], inbox: _Inbox, *, changes: bool) -> None:
        """Stop the remaining orders; if they change nodes, wait for their end, at most `STOP_S` seconds; then
        print those that still run.
        """
        for order in orders.values():
            order.link.send({"say": "stop", "id": order.id})
        deadline = time.monotonic() + STOP_S
        while changes and any(not order.link.lost for order in orders.values()):
            if time.monotonic() > deadline:
                names = [name for order in orders.values() for name in order.names]
                self._narrate(f"interrupted; still running, until their leases end: {fold(names)}")
                break
            with suppress(Empty, NodeFailed):
                order, message = _next(inbox)
                if message.get("say") == "end":
                    self._forget(orders, order)
                elif message.get("say") == "line":
                    self._narrate(on_one_line(field(message, "text", str)))
        for order in list(orders.values()):
            self._forget(orders, order)


def _next(inbox: _Inbox) -> tuple[_Order, Message]:
    """Return the next message.

    Raises:
        Empty: none comes within `LOOK_S` seconds.
    """
    order, message, memory = inbox.get(timeout=LOOK_S)
    order.processed += memory
    order.heard = time.monotonic()
    return order, message


def _read(link: Link, name: str, message: Message, answer: Any) -> Any:
    """Return the result in a message, or the error that it reports.

    Raises:
        NodeFailed: the message has neither, or the result is of another type or node.
    """
    if message.get("say") == "failed":
        try:
            return read_error(message.get("error"))
        except ValueError as error:
            raise NodeFailed(f"{link.name}: {error}") from None
    text = message.get("answer")
    if not isinstance(text, str):
        raise NodeFailed(f"{link.name} sent no answer", expected="JSON as text")
    found = read_answer(text, answer)
    if getattr(found, "name", name) != name:
        raise NodeFailed(f"{link.name} answered for another node")
    return found


def _pickled(order: Any) -> bytes:
    """Return an order as bytes that a service can load."""
    import cloudpickle

    made: bytes = cloudpickle.dumps(order)
    return made


@contextmanager
def running(loop: asyncio.AbstractEventLoop, links: Iterable[Link]) -> Iterator[None]:
    """Read the services' messages within the context, as tasks of a loop in another thread."""
    tasks = [call(loop, link.run()) for link in links]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
