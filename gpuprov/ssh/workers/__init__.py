"""Dask (distributed) workers that connect to nodes for a controller: the optional extra `gpuprov[scale]`."""

from __future__ import annotations

from gpuprov.ssh.workers.hiring import hire

__all__ = ["hire"]
