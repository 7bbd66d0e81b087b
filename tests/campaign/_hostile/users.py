"""Another user on the controller: open modes, ports on loopback, a scheduler of that user."""

from __future__ import annotations

import os
import random
import shutil
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from gpuprov.errors import GpuprovError
from tests.campaign._hostile.field import Field, Reached, way
from tests.campaign._hostile.network import Server
from tests.campaign._hostile.wire import BAD, answer_to, call, document_bytes, wired, write_paper_lock
from tests.campaign._hostile.words import payload
from tests.campaign._hostile_fleet import healthy

Try = Callable[[random.Random], None]
TLS = b"\x16\x03"


@way("user on the controller", "modes", "file", "key", share=250)
def modes(field: Field) -> Try:
    """Try an open umask: other users must not be able to change files, or to read private ones."""
    lock = str(write_paper_lock(field))
    good = document_bytes(healthy())
    known = field.work / "known_hosts"

    def once(rng: random.Random) -> None:
        """Make one try: run a verb; raise Reached if other users may change or read its files."""
        state, cache = field.work / f"state-{field.number}", field.work / f"cache-{field.number}"
        homes = {"XDG_STATE_HOME": str(state), "XDG_CACHE_HOME": str(cache), "XDG_DATA_HOME": str(state)}
        verb = rng.choice(
            (["drift"], ["plan"], ["facts", BAD], ["drift", "-o", "json"], ["doctor", BAD], ["pin"])
        )
        before = os.umask(rng.choice((0, 0o002, 0)))
        try:
            with patch.dict(os.environ, homes), wired(lambda name, command, stdin: answer_to(command, good)):
                if verb == ["pin"]:
                    _pin(known)
                else:
                    call(field, *verb, "--lock", lock)
                _runs()
        finally:
            os.umask(before)
        for path in [known, *state.rglob("*"), *cache.rglob("*")]:
            if path.exists() and not path.is_symlink():
                mode = stat.S_IMODE(path.stat().st_mode)
                if mode & 0o002 and not _is_inside_private(path, field.work):
                    raise Reached("file", f"others may write {path.relative_to(field.work)} ({mode:o})")
                if mode & 0o004 and "runs" in path.parts and not _is_inside_private(path, field.work):
                    raise Reached("key", f"others may read {path.relative_to(field.work)} ({mode:o})")
        for folder in (state, cache):
            shutil.rmtree(folder, ignore_errors=True)
        known.unlink(missing_ok=True)

    return once


def _is_inside_private(path: Path, below: Path) -> bool:
    """Return whether a parent folder denies others access."""
    return any(
        not stat.S_IMODE(each.stat().st_mode) & 0o001 for each in path.parents if below in each.parents
    )


def _pin(path: Path) -> None:
    """Pin a new host key in a file."""
    import paramiko

    from gpuprov.bootstrap.hostkeys import HostKeys

    key = paramiko.ECDSAKey.generate()
    HostKeys(path, None).pin("gpu01", 22, [f"{key.get_name()} {key.get_base64()}"])


def _runs() -> None:
    """Write a file into the folder of a new run."""
    from gpuprov.files.runs import new_run

    (new_run("apply") / "inventory.json").write_text("{}")


@way("user on the controller", "a scheduler on loopback", "code", "key", share=40, seconds=60)
def scheduler(field: Field) -> Try:
    """Try another user's port in `--workers`: nothing but TLS may be sent there."""
    from gpuprov.ssh.workers.certificates import make_certificates

    server, folder = Server(), field.work / "tls"
    make_certificates(folder, ["east"])

    def once(rng: random.Random) -> None:
        """Make one try: connect to a hostile port; raise Reached if it is taken on or hears plain text."""
        from gpuprov.ssh.workers import hire

        first: list[bytes] = []
        noise = payload(rng, field, "odd", "terminal").encode("utf-8", "replace")

        def serve(client: socket.socket) -> None:
            first.append(client.recv(4096))
            client.sendall(rng.choice((noise, b"", (1 << 40).to_bytes(8, "little") + noise)))

        server.serve = serve
        stated = rng.choice(
            ("127.0.0.1:{}", "tcp://127.0.0.1:{}", "tls://127.0.0.1:{}", "localhost:{}")
        ).format(server.port)
        with suppress(GpuprovError, OSError), hire(stated, {"node1": "east"}, folder=folder):
            raise Reached("code", f"a stranger's scheduler was taken on at {stated}")
        if any(each and not each.startswith(TLS) for each in first):
            raise Reached("code", f"{stated}: plain TCP with whoever listens: {first[0][:40]!r}")

    return once


@way("user on the controller", "ports of local workers", "code", "key", share=4, seconds=120)
def ports(field: Field) -> Try:
    """Try ports of local workers: they must not answer others with pages or in plain text."""

    def once(rng: random.Random) -> None:
        """Make one try: start local workers, and send requests to their ports."""
        from gpuprov.ssh.workers import hire

        before = _listening()
        with hire("local:1", {"node1": None}):
            for port in _listening() - before:
                _ask(port)

    return once


def _ask(port: int) -> None:
    """Send requests of Dask's pages to a port; raise Reached if one is answered."""
    for request in (b"GET /status HTTP/1.0\r\n\r\n", b"GET /info/main/workers.html HTTP/1.0\r\n\r\n"):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as client:
            client.sendall(request)
            client.settimeout(2)
            answer = client.recv(4096)
            if answer.startswith(b"HTTP/"):
                raise Reached("key", f"a page for every user at port {port}: {answer[:60]!r}")


def _listening() -> set[int]:
    """Return the ports on which a process listens on this machine."""
    found: set[int] = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(name).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                found.add(int(words[1].rpartition(":")[2], 16))
    return found
