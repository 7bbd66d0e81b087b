"""Frames of JSON between a controller and the service of a site, bounded in size.

A frame is its length in four bytes and as many bytes. Frames of a service are JSON objects and nothing else;
the only frame that is not JSON is a controller's order, which a service reads once it knows the controller.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from gpuprov.errors import NodeFailed
from gpuprov.untrusted import shown

ANSWER_BYTES = 16 << 20
"""The most of one node's answer as JSON: twice what a node may send, as JSON escapes quotation marks."""
MESSAGE_BYTES = 2 * ANSWER_BYTES + (1 << 20)
"""The answer is a string of the message, so its quotation marks are escaped once more."""
WORK_BYTES = 256 << 20
"""The most of an order, which has the lock of a site's nodes and what is to be done there."""
SEND_S = 60.0
Message = dict[str, Any]


class Closed(Exception):
    """The other end is gone, or sent what is no frame."""


class Stream:
    """One connection; `send` may be called from any thread but the loop's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self.size = 0
        """Bytes of the frame that was read last."""

    async def read(self) -> Message:
        """Return the next message.

        Raises:
            Closed: none comes, or it is no JSON object.
        """
        try:
            found = json.loads(await self.read_bytes(MESSAGE_BYTES))
        except (ValueError, RecursionError):
            raise Closed("sent what is no JSON") from None
        if not isinstance(found, dict):
            raise Closed("sent JSON that is no object")
        return found

    async def read_bytes(self, most: int) -> bytes:
        """Return the next frame as it is.

        Raises:
            Closed: none comes, or it is larger than `most` bytes.
        """
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            if size > most:
                raise Closed(f"sent a message of {size} bytes; expected at most {most}")
            self.size = size
            return await self._reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError):
            raise Closed("closed the connection") from None

    async def write(self, *messages: Message, then: bytes | None = None) -> None:
        """Write messages, and a frame of bytes after them.

        Raises:
            Closed: the other end takes nothing any more.
        """
        frames = [json.dumps(message).encode() for message in messages]
        if then is not None:
            frames.append(then)
        async with self._turn:
            try:
                self._writer.writelines(part for frame in frames for part in (_size(frame), frame))
                async with asyncio.timeout(SEND_S):
                    await self._writer.drain()
            except (OSError, TimeoutError):
                self._writer.transport.abort()
                raise Closed("takes nothing any more") from None

    def send(self, *messages: Message, then: bytes | None = None) -> None:
        """Write from another thread.

        Raises:
            Closed: the other end takes nothing any more.
        """
        try:
            asyncio.run_coroutine_threadsafe(self.write(*messages, then=then), self._loop).result()
        except RuntimeError:  # the loop has ended
            raise Closed("is closed") from None

    def abort(self) -> None:
        """Close it at once, in the loop's thread."""
        self._writer.transport.abort()


def _size(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big")


@contextmanager
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread meanwhile."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, name="gpuprov-workers", daemon=True)
    thread.start()
    try:
        yield made
    finally:
        with suppress(TimeoutError):
            call(made, _end_all()).result(5)
        made.call_soon_threadsafe(made.stop)
        thread.join(5)
        made.close()


async def _end_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def call(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Future[Any]:
    """Run a coroutine in a loop of another thread."""
    return asyncio.run_coroutine_threadsafe(work, loop)


def field(message: Message, name: str, kind: type, most: int = 4000) -> Any:
    """Return a field of a message that must have a type; text is cut off at `most` characters.

    Raises:
        NodeFailed: it has another one.
    """
    found = message.get(name)
    if type(found) is not kind:
        raise NodeFailed(f"{name}: {shown(found)}", expected=kind.__name__)
    return found[:most] if isinstance(found, str) else found
