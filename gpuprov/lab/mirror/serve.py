"""A mirror over HTTP, on the address at which lab nodes see this machine, with a mirror's bad days."""

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
from gpuprov.lab.network import GATEWAY

MOODS = ("well", "gone", "broken", "slow", "silent")
"""How it behaves: `gone` names packages that are not there, `broken` sends half of each, `slow` drips,
`silent` takes a connection and never answers."""

PACKAGES = (".deb", ".rpm")
IP_FREEBIND = 15
"""ip(7): the gateway's address exists only while there are nodes."""


class MirrorServer(ThreadingHTTPServer):
    """Serves one folder. `mood` may change while it runs."""

    daemon_threads = True

    def __init__(self, root: Path, port: int = 0, mood: str = "well") -> None:
        self.mood = mood
        super().__init__((str(GATEWAY), port), partial(_Handler, directory=str(root)))

    def server_bind(self) -> None:
        """Bind although no interface may have the address yet."""
        self.socket.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        super().server_bind()

    def wait(self) -> None:
        """Return when somebody interrupts."""
        with suppress(KeyboardInterrupt):
            threading.Event().wait()

    @property
    def url(self) -> str:
        """Where nodes find the folder."""
        return f"http://{GATEWAY}:{self.server_port}"


class _Handler(SimpleHTTPRequestHandler):
    server: MirrorServer

    def do_GET(self) -> None:
        """Serve a file, or what the day has instead."""
        is_package = self.path.endswith(PACKAGES)
        if self.server.mood == "gone" and is_package:
            self.send_error(404)
        elif self.server.mood == "silent":
            time.sleep(3600)
        else:
            super().do_GET()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send a body, wholly and at once on a good day."""
        if self.server.mood == "slow":
            _drip(source, outputfile)
        elif self.server.mood == "broken" and self.path.endswith(PACKAGES):
            content = source.read()
            outputfile.write(content[: len(content) // 2])
        else:
            super().copyfile(source, outputfile)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's word
        """Say nothing: nodes ask for hundreds of files."""


def _drip(source: BinaryIO, sink: BinaryIO) -> None:
    while piece := source.read(16):
        sink.write(piece)
        sink.flush()
        time.sleep(0.5)


@contextmanager
def served(root: Path, port: int = 0, mood: str = "well") -> Iterator[MirrorServer]:
    """A mirror's folder, served until the block ends.

    Args:
        port: a free one by default.

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
