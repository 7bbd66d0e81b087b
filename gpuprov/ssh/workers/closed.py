"""Keeps a scheduler or a worker of Dask's from serving pages: no port of HTTP is opened.

Dask opens one also without its dashboard (`/health`, `/info`, `/metrics`). Named as a preload:

    dask scheduler --preload gpuprov.ssh.workers.closed
    dask worker --preload gpuprov.ssh.workers.closed
"""

from __future__ import annotations

from typing import Any

from distributed.node import ServerNode


def _serve_no_pages(self: ServerNode, *arguments: Any, **options: Any) -> None:
    """Stand in for `ServerNode.start_http_server`."""


ServerNode.start_http_server = _serve_no_pages


def dask_setup(server: Any) -> None:
    """Do nothing: a preload is imported before its server opens a port, and that is when pages are closed."""
