"""Frames of JSON between a controller and the service of a site, limited in size.

A frame is its length in four bytes, big-endian, followed by as many bytes. A service's frames are JSON
objects only. The only frame that is not JSON is a controller's order, which a service reads after it has
authenticated the controller.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from gpuprov.errors import NodeFailed
from gpuprov.untrusted import on_one_line, shown
from gpuprov.untrusted.parsing import memory_limit_of, read_json

ANSWER_BYTES = 16 << 20
"""Maximum size of one node's answer as JSON: twice what a node may send, as JSON escapes quotation marks."""
MESSAGE_BYTES = 2 * ANSWER_BYTES + (1 << 20)
"""Maximum size of a message: the answer is a string in it, so its quotation marks are escaped once more."""
MESSAGE_VALUES = 10_000
"""Maximum number of values of a message; answers and files are strings, others have a few for each node."""
WORK_BYTES = 256 << 20
"""Maximum size of an order, which contains the lock of a site's nodes and the work on them."""
SEND_S = 60.0
Message = dict[str, Any]


class Closed(Exception):
    """The end of a connection: the peer closed it, or sent an invalid frame."""


class Stream:
    """One connection; `send` may be called from any thread except the loop's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self.heard = time.monotonic()
        """Time of the last bytes read."""
        self.size = 0
        """Size in bytes of the last frame read."""
        self.memory = 0
        """Maximum memory of the last message read, in bytes."""

    async def read(self) -> Message:
        """Return the next message.

        Raises:
            Closed: no message comes, or it is not a JSON object of at most `MESSAGE_VALUES` values.
        """
        frame = await self.read_bytes(MESSAGE_BYTES)
        try:
            found = read_json(frame, MESSAGE_BYTES, MESSAGE_VALUES)
        except ValueError as error:
            raise Closed(f"sent invalid JSON: {on_one_line(str(error))[:100]}") from None
        self.memory = memory_limit_of(frame, MESSAGE_VALUES)
        if not isinstance(found, dict):
            raise Closed("sent JSON that is not an object")
        return found

    async def read_bytes(self, most: int) -> bytes:
        """Return the next frame as bytes.

        Raises:
            Closed: no frame comes, or it is larger than `most` bytes.
        """
        try:
            size = int.from_bytes(await self._exactly(4), "big")
            if size > most:
                raise Closed(f"sent a message of {size} bytes; expected at most {most}")
            self.size = size
            return await self._exactly(size)
        except OSError:
            raise Closed("closed the connection") from None

    async def _exactly(self, size: int) -> bytes:
        """Return the next bytes, and note the time of each piece: a large frame on a slow link takes minutes.

        Raises:
            Closed: the connection ends before.
        """
        found = bytearray()
        while len(found) < size:
            piece = await self._reader.read(size - len(found))
            if not piece:
                raise Closed("closed the connection")
            self.heard = time.monotonic()
            found += piece
        return bytes(found)

    async def write(self, *messages: Message, then: bytes | None = None) -> None:
        """Write messages, and a frame of bytes after them.

        Raises:
            Closed: the peer does not accept them.
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
                raise Closed("no longer accepts messages") from None

    def send(self, *messages: Message, then: bytes | None = None) -> None:
        """Write from a thread other than the loop's.

        Raises:
            Closed: the peer does not accept the messages.
        """
        try:
            asyncio.run_coroutine_threadsafe(self.write(*messages, then=then), self._loop).result()
        except RuntimeError:  # the loop has ended
            raise Closed("is closed") from None

    def abort(self) -> None:
        """Close the connection at once, in the loop's thread."""
        self._writer.transport.abort()


def _size(frame: bytes) -> bytes:
    """Return the length of a frame as its first four bytes."""
    return len(frame).to_bytes(4, "big")


@contextmanager
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread within the context; cancel its tasks at the end."""
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
    """Cancel all other tasks of the running loop, and wait for their end."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def call(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Future[Any]:
    """Run a coroutine in the loop of another thread; return a future of its result at once."""
    return asyncio.run_coroutine_threadsafe(work, loop)


def field(message: Message, name: str, kind: type, most: int = 4000) -> Any:
    """Return a field of a message, which must have the type; text is cut off at `most` characters.

    Raises:
        NodeFailed: the field has another type.
    """
    found = message.get(name)
    if type(found) is not kind:
        raise NodeFailed(f"{name}: {shown(found)}", expected=kind.__name__)
    return found[:most] if isinstance(found, str) else found
