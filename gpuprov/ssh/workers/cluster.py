"""Dask's scheduler and workers of one site: started on this machine, or running elsewhere behind TLS."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import dask
import distributed

from gpuprov.errors import InvalidInput, Refused, Unreachable
from gpuprov.files.runs import state_dir
from gpuprov.ssh.workers import closed

CONNECT_S = 10
CLOSE_S = 3
THREADS = 2
"""Threads of a worker started here: while one shard waits for its last node, the other one continues."""
DOCS = "see docs/scale.md"
TLS = "distributed.comm.tls"
Connect = Callable[[], AbstractContextManager[Any]]
"""Factory of clients of the site's scheduler."""


def hush() -> None:
    """Silence Dask's log messages about broken connections, which `DaskCrew` reports.

    Dask sets its own log levels when it is imported.
    """
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def own_cluster(count: int) -> Iterator[Connect]:
    """Run workers on this machine within the context; yield a factory of their clients.

    Other users of the machine can connect to its loopback address. All connections therefore need a
    certificate that is created here. Dask keeps its key in memory, but for each TLS context writes it into a
    temporary folder that only this user can read, and removes it: Python reads a key from a file only. No
    HTTP port is opened. Dask's scratch folder is in the state folder; Dask removes what killed processes left
    there.
    """
    os.environ["PYTHONSAFEPATH"] = "1"  # multiprocessing's processes would begin in the current folder
    security = distributed.Security.temporary()
    settings = {
        closed.FOLDER: str(state_dir() / "dask"),
        "distributed.worker.preload": [closed.__name__],
        "distributed.scheduler.preload": [closed.__name__],
    }
    with (
        dask.config.set(settings),
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
    """Return a factory of clients of the site's scheduler.

    Raises:
        InvalidInput: the address is invalid, or no certificates are configured.
        Refused: plain TCP, over which the answers of any user of the machine would be accepted.
    """
    found = re.fullmatch(r"(?:(tcp|tls)://)?((?:\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5})", stated)
    if not found:
        raise InvalidInput(f"--scheduler {stated}", expected="tls://HOST:PORT")
    if found[1] == "tcp":
        raise Refused(f"{stated} is plain TCP, without authentication", expected="tls://", do=DOCS)
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
    """Yield a client of the scheduler at an address, and close it afterwards.

    Raises:
        Unreachable: no scheduler answers within `CONNECT_S` seconds.
    """
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
        with suppress(OSError, TimeoutError):  # the loss of the scheduler is reported already
            client.close(timeout=CLOSE_S)
