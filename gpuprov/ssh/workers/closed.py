"""Preload module for Dask's scheduler and workers that keeps them from opening an HTTP port.

Dask opens one even without its dashboard (`/health`, `/info`, `/metrics`). Usage:

    dask scheduler --preload gpuprov.ssh.workers.closed
    dask worker --preload gpuprov.ssh.workers.closed
"""

from __future__ import annotations

from typing import Any

from distributed.node import ServerNode


def _serve_no_pages(self: ServerNode, *arguments: Any, **options: Any) -> None:
    """Replace `ServerNode.start_http_server`; open no port."""


ServerNode.start_http_server = _serve_no_pages


def dask_setup(server: Any) -> None:
    """Do nothing: Dask imports a preload before a port is opened, and the import disables the HTTP server."""
