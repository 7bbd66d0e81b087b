"""A mirror over HTTP, on this machine's address for lab nodes, with simulated failures."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

from gpuprov.errors import GpuprovError
from gpuprov_lab.network import GATEWAY

MOODS = ("well", "gone", "broken", "slow", "silent")
"""Behaviour of the server: `gone` does not find packages, `broken` sends half of each, `slow` sends a few
bytes at a time, `silent` accepts a connection and never answers.
"""

PACKAGES = (".deb", ".rpm")
IP_FREEBIND = 15
"""ip(7): the gateway's address exists only while there are nodes."""


class MirrorServer(ThreadingHTTPServer):
    """A server of one folder on the lab's gateway address.

    `mood` may change while it runs: `well`; `gone` has no packages (404), `broken` sends half of each
    package, `slow` 16 bytes every 0.5 s, `silent` nothing.
    """

    daemon_threads = True

    def __init__(self, root: Path, port: int = 0, mood: str = "well") -> None:
        self.mood = mood
        super().__init__((str(GATEWAY), port), partial(_Handler, directory=str(root)))

    def server_bind(self) -> None:
        """Bind to the address although no interface may have it yet."""
        self.socket.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        super().server_bind()

    def wait(self) -> None:
        """Wait for a keyboard interrupt, then return."""
        with suppress(KeyboardInterrupt):
            threading.Event().wait()

    @property
    def url(self) -> str:
        """The folder's URL for nodes."""
        return f"http://{GATEWAY}:{self.server_port}"


class _Handler(SimpleHTTPRequestHandler):
    server: MirrorServer

    def do_GET(self) -> None:
        """Serve a file, or fail according to `mood`: without packages (`gone`), or without an answer
        (`silent`).
        """
        is_package = self.path.endswith(PACKAGES)
        if self.server.mood == "gone" and is_package:
            self.send_error(404)
        elif self.server.mood == "silent":
            time.sleep(3600)
        else:
            super().do_GET()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send a body: completely and at once, slowly, or half of a package, according to `mood`."""
        if self.server.mood == "slow":
            _drip(source, outputfile)
        elif self.server.mood == "broken" and self.path.endswith(PACKAGES):
            content = source.read()
            outputfile.write(content[: len(content) // 2])
        else:
            super().copyfile(source, outputfile)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's word
        """Discard log messages: nodes request hundreds of files."""


def _drip(source: BinaryIO, sink: BinaryIO) -> None:
    """Copy 16 bytes every 0.5 s."""
    while piece := source.read(16):
        sink.write(piece)
        sink.flush()
        time.sleep(0.5)


@contextmanager
def served(root: Path, port: int = 0, mood: str = "well") -> Iterator[MirrorServer]:
    """Serve a mirror's folder in a thread until the block ends; yield the server.

    Args:
        port: 0, the default, takes a free one.
        mood: one of `MOODS`, see `MirrorServer`.

    Raises:
        GpuprovError: the port is taken.
    """
    try:
        server = MirrorServer(root, port, mood)
    except OSError as error:
        raise GpuprovError(f"port {port} of {GATEWAY} cannot be served: {error.strerror}") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
