"""Dask's scheduler and workers of one site: started on this machine, or those of a scheduler over TLS."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import dask
import distributed

from gpuprov.errors import InvalidInput, Refused, Unreachable
from gpuprov.ssh.workers import closed

CONNECT_S = 10
CLOSE_S = 3
THREADS = 2
"""Of a worker that is started here: while one shard waits for its last node the other goes on."""
DOCS = "see docs/SCALE.md"
TLS = "distributed.comm.tls"
Connect = Callable[[], AbstractContextManager[Any]]
"""Makes a client of the site's scheduler."""


def hush() -> None:
    """Silence what Dask logs of a broken connection: the crew says it. Its import sets levels of its own."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def own_cluster(count: int) -> Iterator[Connect]:
    """Start workers on this machine meanwhile.

    Other users of the machine reach loopback: all connections need a certificate that is made now and is
    nowhere but in these processes. No pages are served.
    """
    security = distributed.Security.temporary()
    preload = [closed.__name__]
    with (
        dask.config.set({"distributed.worker.preload": preload, "distributed.scheduler.preload": preload}),
        distributed.LocalCluster(
            n_workers=count,
            threads_per_worker=THREADS,
            host="127.0.0.1",
            protocol="tls://",
            security=security,
            dashboard_address=None,
            worker_dashboard_address=None,
            silence_logs=logging.CRITICAL,
            memory_limit=0,
        ) as cluster,
    ):
        yield lambda: distributed.Client(cluster, security=security, set_as_default=False)


def cluster_at(stated: str) -> Connect:
    """Return what connects to a scheduler of the site.

    Raises:
        InvalidInput: it is no address, or no certificates are configured.
        Refused: plain TCP. Whoever answers there is believed, and that is any user of the machine.
    """
    found = re.fullmatch(r"(?:(tcp|tls)://)?((?:\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5})", stated)
    if not found:
        raise InvalidInput(f"--scheduler {stated}", expected="tls://HOST:PORT")
    if found[1] == "tcp":
        raise Refused(f"{stated} is plain TCP: anybody can answer there", expected="tls://", do=DOCS)
    security = distributed.Security(require_encryption=True)
    if not (security.tls_ca_file and security.tls_client_cert):
        raise InvalidInput(
            f"no certificates for {stated}",
            expected=f"{TLS}.ca-file and {TLS}.client.cert in Dask's configuration",
            do=DOCS,
        )
    return lambda: _connected(f"tls://{found[2]}", security)


@contextmanager
def _connected(address: str, security: Any) -> Iterator[Any]:
    try:
        client = distributed.Client(
            address, security=security, timeout=CONNECT_S, set_as_default=False, heartbeat_interval="2s"
        )
    except (OSError, ValueError) as error:
        said = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise Unreachable(
            f"no scheduler at {address}: {said[-1]}", do="dask scheduler, and " + DOCS
        ) from None
    try:
        yield client
    finally:
        with suppress(OSError, TimeoutError):  # a scheduler that is gone was said already
            client.close(timeout=CLOSE_S)
