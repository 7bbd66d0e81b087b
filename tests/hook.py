"""Web server that serves one document and records the documents posted to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Hook(HTTPServer):
    """Server of `content` with `status` and `headers`; `posted` are the JSON documents that it received.

    It waits `pause_s` seconds before each byte.
    """

    def __init__(self, binds: str, called: str) -> None:
        self.content, self.status, self.called = b"", 200, called
        self.headers: dict[str, str] = {}
        self.pause_s = 0.0
        self.posted: list[dict[str, Any]] = []
        super().__init__((binds, 0), _Handler)

    @property
    def url(self) -> str:
        """URL of the server, with the name by which its callers know this machine."""
        return f"http://{self.called}:{self.server_port}/x"


class _Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_GET(self) -> None:
        """Send the document, with a pause before each byte if the server has one."""
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if not self.server.pause_s:
            self.wfile.write(self.server.content)
            return
        for byte in self.server.content:
            threading.Event().wait(self.server.pause_s)
            self.wfile.write(bytes([byte]))

    def do_POST(self) -> None:
        """Record the posted document, then answer as to a GET."""
        self.server.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def listening(binds: str = "127.0.0.1", called: str = "127.0.0.1") -> Iterator[Hook]:
    """Run a hook in a thread.

    Args:
        binds: address that it listens on.
        called: address that its callers use.
    """
    with Hook(binds, called) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
