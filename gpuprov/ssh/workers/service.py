"""Service of a site: it receives a coordinator's orders, runs them on Dask workers, and answers in JSON.

Pickles from Dask's workers of the same site are loaded only here; a coordinator gets nothing but JSON. A
coordinator's orders are pickles, too, and are read after its certificate has proven that it is the
coordinator.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from gpuprov.errors import GpuprovError, NodeFailed, Refused
from gpuprov.ssh.answers import error_document, write_answer
from gpuprov.ssh.dispatch import CrewLost
from gpuprov.ssh.workers.cluster import Connect, hush, own_cluster
from gpuprov.ssh.workers.crew import DaskCrew
from gpuprov.ssh.workers.identity import is_coordinator
from gpuprov.ssh.workers.version import VERSION
from gpuprov.ssh.workers.wire import ANSWER_BYTES, WORK_BYTES, Closed, Message, Stream, field

QUIET_S = 60.0
"""A coordinator sends a ping every two seconds; after so long without a message it is lost."""
HANDSHAKE_S = 10.0
GUESTS = 64
"""Maximum number of simultaneous connections; others are closed at once."""


def encoded(
    work: Callable[[Mapping[str, Any]], Mapping[str, Any]], answer: Any, each: Mapping[str, Any]
) -> dict[str, Message]:
    """Do work on a worker; return node → the message for the coordinator."""
    return {name: _message(found, answer) for name, found in work(each).items()}


def _message(found: Any, answer: Any) -> Message:
    """Return the message about a result or an error; a result that cannot be written as JSON is an error."""
    if not isinstance(found, GpuprovError):
        try:
            return {"say": "answer", "answer": write_answer(found, answer, ANSWER_BYTES)}
        except NodeFailed as error:
            found = error
    return {"say": "failed", "error": error_document(found)}


def _addressed(order: int, name: str, found: Any) -> Message:
    """Return the message about a node's result or error, with the id of the order and the node's name."""
    if isinstance(found, GpuprovError):
        found = {"say": "failed", "error": error_document(found)}
    return {**found, "id": order, "node": name}


class Session:
    """One coordinator's connection, and its orders."""

    def __init__(self, stream: Stream, connect: Connect) -> None:
        self._stream, self._connect = stream, connect
        self._over: dict[int, threading.Event] = {}
        self._threads: list[threading.Thread] = []

    async def run(self) -> None:
        """Process messages until the coordinator disconnects or is silent for `QUIET_S` seconds.

        Then end changes of nodes as soon as safe. A coordinator of another version, or without good workers,
        is refused with a message.
        """
        loop, stack = asyncio.get_running_loop(), ExitStack()
        try:
            await self._welcome()
            crew = await loop.run_in_executor(None, self._open, stack)
            await self._stream.write({"say": "ready", "version": VERSION})
            while True:
                async with asyncio.timeout(QUIET_S):
                    message = await self._stream.read()
                await self._take(message, crew)
        except GpuprovError as error:
            with suppress(Closed):
                await self._stream.write({"say": "refused", "error": error_document(error)})
        except (Closed, TimeoutError):
            pass
        finally:
            self._stop_all()
            await loop.run_in_executor(None, self._close, stack)
            self._stream.abort()

    def _stop_all(self) -> None:
        """Request that all orders end."""
        for over in self._over.values():
            over.set()

    async def _welcome(self) -> None:
        """Read the coordinator's first message.

        Raises:
            Refused: the coordinator has another version.
            TimeoutError: no message comes within `HANDSHAKE_S` seconds.
        """
        async with asyncio.timeout(HANDSHAKE_S):
            message = await self._stream.read()
        if message.get("version") != VERSION:
            raise Refused(f"the service has {VERSION}", expected=str(message.get("version")))

    def _open(self, stack: ExitStack) -> DaskCrew:
        """Return the workers of the site, checked and ready, until the stack is closed."""
        crew = DaskCrew(stack.enter_context(self._connect()), self._narrate)
        return stack.enter_context(crew.ready())

    def _close(self, stack: ExitStack) -> None:
        """Wait for the threads of all orders, then close the stack."""
        for thread in self._threads:
            thread.join()
        stack.close()

    def _narrate(self, line: str) -> None:
        """Send a line for the user, unless the connection is closed."""
        with suppress(Closed):
            self._stream.send({"say": "line", "text": line})

    async def _take(self, message: Message, crew: DaskCrew) -> None:
        """Process one message: answer a ping, stop an order, or start one in a new thread; ignore others."""
        match message.get("say"):
            case "ping":
                await self._stream.write({"say": "pong"})
            case "stop" if over := self._over.get(field(message, "id", int)):
                over.set()
            case "order":
                number, over = field(message, "id", int), threading.Event()
                order = await self._stream.read_bytes(WORK_BYTES)
                self._over[number] = over
                thread = threading.Thread(
                    target=self._carry_out, args=(crew, message, order, over), daemon=True
                )
                self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
                thread.start()

    def _carry_out(self, crew: DaskCrew, reported: Message, order: bytes, over: threading.Event) -> None:
        """Do the work of an order; send its events, its results, and its end with the error, if any; none is
        raised.

        Nothing more is sent once the coordinator has disconnected.
        """
        number = reported["id"]
        end: Message = {"say": "end", "id": number}
        try:
            work, answer, each = pickle.loads(order)  # noqa: S301 - of the coordinator, by its certificate

            def hear(attempt: int, event: Any) -> None:
                self._stream.send({"say": "event", "id": number, "number": attempt, "event": event})

            found = crew.do(
                partial(encoded, work, answer),
                each,
                hear=hear,
                changes=reported["changes"],
                first=reported["first"],
                over=over,
            )
            for some in found:
                self._stream.send(*(_addressed(number, name, message) for name, message in some.items()))
        except Closed:
            return
        except CrewLost as error:
            end |= {"error": error_document(error), "lost": True}
        except GpuprovError as error:
            end |= {"error": error_document(error)}
        except Exception as error:  # noqa: BLE001 - an order's failure is no other order's
            end |= {"error": error_document(NodeFailed(f"{type(error).__name__}: {error}"))}
        finally:
            self._over.pop(number, None)
        with suppress(Closed):
            self._stream.send(end)


async def serve(
    context: ssl.SSLContext, host: str, port: int, connect: Connect, say: Callable[[str], None]
) -> None:
    """Listen without end, and serve each coordinator.

    Other connections, and those beyond `GUESTS`, are closed before any data is read.
    """
    hush()
    here = 0

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal here
        peer = writer.get_extra_info("peername")
        if here >= GUESTS or not is_coordinator(writer.get_extra_info("peercert")):
            say(f"turned away: {peer}")
            writer.transport.abort()
            return
        here += 1
        try:
            say(f"a coordinator: {peer}")
            await Session(Stream(reader, writer), connect).run()
        finally:
            here -= 1

    server = await asyncio.start_server(meet, host, port, ssl=context, ssl_handshake_timeout=HANDSHAKE_S)
    say(f"listening: {json.dumps([each.getsockname()[:2] for each in server.sockets])}")
    async with server:
        await server.serve_forever()


async def _serve_parent(handle: int, connect: Connect) -> None:
    """Serve the coordinator at the other end of an open socket, given as a file descriptor, until it
    disconnects.
    """
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=handle))
    await Session(Stream(reader, writer), connect).run()


def main() -> None:
    """Serve the parent process over the socket that it passed.

    Arguments are the socket's file descriptor and the number of workers.
    """
    handle, count = map(int, sys.argv[1:])
    hush()
    with own_cluster(count) as connect:
        asyncio.run(_serve_parent(handle, connect))
