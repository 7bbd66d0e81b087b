"""Start of `--workers`: services of sites over TLS, or workers of this machine over a socketpair."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed, Refused, Unreachable
from gpuprov.ssh.answers import read_error
from gpuprov.ssh.workers.identity import coordinator_context, default_folder, proven_site
from gpuprov.ssh.workers.sites import Link, SiteCrew, running
from gpuprov.ssh.workers.version import VERSION
from gpuprov.ssh.workers.wire import Closed, Message, Stream, call, loop
from gpuprov.untrusted import shown

CONNECT_S = 10.0
READY_S = 120.0
"""Seconds for a service to find its workers; workers of this machine are started in that time."""
END_S = 75.0
HERE = re.compile(r"local(?::(?P<count>[1-9]\d{0,2}))?")
ADDRESS = re.compile(r"(?:(?P<protocol>tcp|tls)://)?(?P<host>\[[0-9a-fA-F:]+\]|[\w.-]+):(?P<port>\d{1,5})")
DOCS = "gpuprov workers serve, there; see docs/scale.md"
CHILD = "from gpuprov.ssh.workers.service import main; main()"


@contextmanager
def hire(
    stated: str,
    sites: Mapping[str, str | None],
    *,
    password: bool = False,
    narrate: Callable[[str], None] = lambda line: None,
    folder: Path | None = None,
) -> Iterator[SiteCrew]:
    """Provide workers within the context.

    Args:
        stated: `local`, `local:4`, or the addresses of services, `tls://gw.fra1:8790,tls://gw.iad1:8790`.
        sites: node → its site; workers started on this machine connect to every node.
        password: whether sudo's password is needed.
        narrate: called with each line for the user.
        folder: folder of the coordinator's certificates, if not the default one.

    Raises:
        InvalidInput: an address is invalid, the extra is not installed, or there are no certificates.
        Unreachable: no service answers at an address.
        Refused: sudo's password is needed, plain TCP, a service does not prove its site or has another
            version, or a site has no service.
    """
    if not find_spec("cloudpickle") or not find_spec("distributed"):
        raise InvalidInput("--workers needs Dask", do="pip install --only-binary=:all: 'distributed>=2025.1'")
    if password:
        raise Refused(
            "sudo's password is not sent to workers",
            expected="a login on the nodes whose sudo asks for no password",
            do="set NOPASSWD in sudoers on the nodes, or --workers none",
        )
    here = HERE.fullmatch(stated)
    with ExitStack() as stack:
        if here:
            count = int(here["count"] or os.cpu_count() or 1)
            stream = stack.enter_context(_started(count))
            running_loop = stack.enter_context(loop())
            links = [call(running_loop, _meet_child(stream)).result()]
        else:
            addresses = [_address(each) for each in stated.split(",")]
            context = coordinator_context(folder or default_folder())
            running_loop = stack.enter_context(loop())
            links = call(running_loop, _meet_all(addresses, context)).result()
        stack.enter_context(running(running_loop, links))
        crew = SiteCrew(links, {} if here else sites, narrate)
        crew.refuse_missing()
        yield crew


def _address(stated: str) -> tuple[str, int]:
    """Return host and port of a service.

    Raises:
        InvalidInput: the address is invalid.
        Refused: plain TCP.
    """
    found = ADDRESS.fullmatch(stated)
    if not found or found["host"] == "local" or int(found["port"]) > 65535:
        raise InvalidInput(f"--workers {shown(stated)}", expected="local, local:N or tls://HOST:PORT,…")
    if found["protocol"] == "tcp":
        raise Refused(f"{stated} is plain TCP, without authentication", expected="local:N or tls://", do=DOCS)
    return found["host"].strip("[]"), int(found["port"])


@contextmanager
def _started(count: int) -> Iterator[socket.socket]:
    """Start workers on this machine, connected by a socketpair, which other processes cannot open.

    Yield this process's end. At the end of the block, workers that do not end within `END_S` are killed.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD, str(theirs.fileno()), str(count)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the workers safely
        )
    try:
        yield ours
    finally:
        ours.close()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


async def _meet_child(ours: socket.socket) -> Link:
    """Return the connection to the workers of this machine, once they are ready; raises as `_greet`."""
    reader, writer = await asyncio.open_connection(sock=ours)
    return await _greet(Link(Stream(reader, writer), None, ""))


async def _meet_all(addresses: list[tuple[str, int]], context: ssl.SSLContext) -> list[Link]:
    """Connect to all services; if one fails, close the other connections and raise its error, see `_meet`."""
    found = await asyncio.gather(
        *(_meet(host, port, context) for host, port in addresses), return_exceptions=True
    )
    links = [each for each in found if isinstance(each, Link)]
    for each in found:
        if isinstance(each, BaseException):
            for link in links:
                link.abort()
            raise each
    return links


async def _meet(host: str, port: int, context: ssl.SSLContext) -> Link:
    """Connect to a service, check its certificate, and wait until it is ready.

    Raises:
        Unreachable: it does not answer.
        Refused: it does not prove a site of this fleet, or has another version.
    """
    where = f"{host}:{port}"
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLCertVerificationError as error:
        raise Refused(
            f"{where} has no certificate of this fleet: {error.verify_message}",
            expected="a certificate that is signed by ca.pem of the coordinator",
            do=DOCS,
        ) from None
    except ssl.SSLError as error:
        raise Refused(f"{where} does not speak TLS 1.3: {error.reason}", do=DOCS) from None
    except (OSError, TimeoutError) as error:
        said = str(error) or "no answer"
        raise Unreachable(f"no gpuprov service answers at {where}: {said}", do=DOCS) from None
    try:
        site = proven_site(writer.get_extra_info("peercert"), where)
    except Refused:
        writer.transport.abort()
        raise
    return await _greet(Link(Stream(reader, writer), site, where))


async def _greet(link: Link) -> Link:
    """Send this version to a service, and wait until it has found its workers.

    Raises:
        Unreachable: the connection is lost, or no answer comes in time.
        Refused: the service has another version, or no usable workers.
    """
    try:
        await link.stream.write({"say": "hello", "version": VERSION})
        async with asyncio.timeout(READY_S):
            message = await link.stream.read()
    except (Closed, TimeoutError) as error:
        link.abort()
        said = str(error) or "does not answer"
        raise Unreachable(
            f"{link.name} {said}", do="check that its ca.pem is the coordinator's, and read its log"
        ) from None
    if message.get("say") == "refused":
        link.abort()
        raise _refusal(link.name, message)
    if message.get("version") != VERSION:
        link.abort()
        seen, do = shown(message.get("version")), "install that version there, and start it again"
        raise Refused(f"{link.name} has {seen}", expected=VERSION, do=do)
    return link


def _refusal(name: str, message: Message) -> GpuprovError:
    """Return the error in a service's refusal, with the service's name."""
    try:
        error = read_error(message.get("error"))
    except ValueError:
        return NodeFailed(f"{name} refuses without a reason")
    error.seen = f"{name}: {error.seen}"
    error.args = (error.seen,)
    return error
