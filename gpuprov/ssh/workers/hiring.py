"""From `--workers` to a crew: connected over TLS or loopback alone, of our version, and with every site."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from gpuprov.errors import InvalidInput, Refused, Unreachable

CONNECT_S = 10
CLOSE_S = 3
HERE = re.compile(r"local(?::(?P<count>[1-9]\d{0,2}))?")
THREADS = 2
"""Of a worker that is started here: while one shard waits for its last node the other goes on."""
DOCS = "see docs/SCALE.md"
TLS = "distributed.comm.tls"


@contextmanager
def hire(
    stated: str,
    sites: Mapping[str, str | None],
    *,
    password: bool = False,
    narrate: Callable[[str], None] = lambda line: None,
) -> Iterator[Any]:
    """A crew of workers, engaged meanwhile.

    Args:
        stated: `local`, `local:4`, `tls://ctl1:8786`, or `127.0.0.1:8786`.
        sites: node → where it stands; workers that are started here reach every one.
        password: whether one is going to be sent.
        narrate: gets a line for a person.

    Raises:
        InvalidInput: no such address, the extra is not installed, or no certificates are configured.
        Unreachable: no scheduler answers there.
        Refused: a worker of another version, none at a site, or plain TCP where others can listen.
    """
    try:
        import distributed
    except ImportError:
        raise InvalidInput("--workers needs Dask", do="pip install 'gpuprov[scale]'") from None
    from gpuprov.ssh.elsewhere import engaged
    from gpuprov.ssh.workers.crew import DaskCrew

    _hush()
    here = HERE.fullmatch(stated)
    with ExitStack() as stack:
        if here:
            count = int(here["count"] or os.cpu_count() or 1)
            client, sites = stack.enter_context(_started(distributed, count)), {}
        else:
            client = stack.enter_context(_connected(distributed, _address(stated, password=password)))
        crew = stack.enter_context(DaskCrew(client, sites, narrate).ready())
        stack.enter_context(engaged(crew))
        yield crew


def _hush() -> None:
    """Silence what Dask logs of a broken connection: the crew says it. Its import sets levels of its own."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _address(stated: str, *, password: bool) -> str:
    """The scheduler's address with its protocol: TLS, or TCP where nobody else listens.

    Raises:
        InvalidInput: it is no address.
        Refused: plain TCP on a real address, or a password over plain TCP.
    """
    found = re.fullmatch(
        r"(?:(?P<protocol>tcp|tls)://)?(?P<host>\[[0-9a-fA-F:]+\]|[\w.-]+):(?P<port>\d{1,5})", stated
    )
    if not found or found["host"] == "local":
        raise InvalidInput(
            f"--workers {stated}", expected="local, local:N, tls://HOST:PORT or 127.0.0.1:PORT"
        )
    loopback = _is_loopback(found["host"])
    protocol = found["protocol"] or ("tcp" if loopback else "tls")
    if protocol == "tcp" and not loopback:
        raise Refused(
            f"{stated} is plain TCP: whoever listens can have your nodes",
            expected="tls://, or an address of this machine alone",
            do=DOCS,
        )
    if protocol == "tcp" and password:
        raise Refused(f"sudo's password does not go to {stated} over plain TCP", expected="tls://", do=DOCS)
    return f"{protocol}://{found['host']}:{found['port']}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@contextmanager
def _started(distributed: Any, count: int) -> Iterator[Any]:
    """Workers on this machine; by TLS too, as other users of it reach loopback."""
    security = distributed.Security.temporary()
    with (
        distributed.LocalCluster(
            n_workers=count,
            threads_per_worker=THREADS,
            host="127.0.0.1",
            protocol="tls://",
            security=security,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
            memory_limit=0,
        ) as cluster,
        distributed.Client(cluster, security=security, set_as_default=False) as client,
    ):
        yield client


@contextmanager
def _connected(distributed: Any, address: str) -> Iterator[Any]:
    security = distributed.Security()
    if address.startswith("tls") and not (security.tls_ca_file and security.tls_client_cert):
        raise InvalidInput(
            f"no certificates for {address}",
            expected=f"{TLS}.ca-file and {TLS}.client.cert in Dask's configuration",
            do=DOCS,
        )
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
