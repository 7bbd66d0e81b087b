"""A foreign host on the network: in place of a node's sshd, and at ports that gpuprov opens."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable

import paramiko

from gpuprov.errors import GpuprovError
from gpuprov.model.connection import Connection
from gpuprov.ssh.transport import ConnectionLimits, Session, Target, fan_out
from gpuprov.untrusted import printable
from tests.campaign._hostile.field import Field, Reached, way
from tests.campaign._hostile.words import payload

Try = Callable[[random.Random], None]
SECONDS = 3.0


class Server:
    """A port where a function serves each connection."""

    def __init__(self) -> None:
        self.serve: Callable[[socket.socket], None] = lambda client: None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        """Serve each connection in a thread, without end."""
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._one, args=(client, self.serve), daemon=True).start()

    def _one(self, client: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        """Serve one connection with a time limit."""
        try:
            with client:
                client.settimeout(SECONDS * 2)
                serve(client)
        except OSError:
            return


def banner(rng: random.Random, field: Field) -> bytes:
    """Draw bytes in place of sshd's first line."""
    text = payload(rng, field, "terminal", "bomb", "odd", "shell", "page").encode("utf-8", "replace")
    return rng.choice(
        (
            text,
            b"SSH-2.0-" + text[:200] + b"\r\n",
            b"SSH-1.5-old\r\n",
            text + b"\r\nSSH-2.0-OpenSSH_9\r\n",
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            b"SSH-2.0-x\r\n" + rng.randbytes(rng.choice((1, 16, 300))),
            b"SSH-2.0-x\r\n" + (12).to_bytes(4, "big") + bytes([11]) + bytes(11),
            b"SSH-2.0-x\r\n" + (2**32 - 1).to_bytes(4, "big") + rng.randbytes(64),
            b"x\r\n" * rng.choice((1, 3000)),
        )
    )


def _log_in(session: Session) -> int:
    """Run `true` in a session; return its exit code."""
    return session.run("true").code


@way("stranger", "sshd", "code", "key", share=200, seconds=40)
def sshd(field: Field) -> Try:
    """Try a server in place of a node's sshd: bytes before and instead of SSH."""
    server = Server()
    key = field.work / "id"
    paramiko.ECDSAKey.generate().write_private_key_file(str(key))
    way_there = Connection(port=server.port, identity_file=str(key), known_hosts=str(field.work / "known"))
    limits = ConnectionLimits(connect_s=SECONDS, command_s=SECONDS)

    def once(rng: random.Random) -> None:
        """Make one try: connect to a hostile server, and check the time that this takes."""
        said, silent = banner(rng, field), rng.random() < 0.02

        def serve(client: socket.socket) -> None:
            """Send the bytes; then stay silent, or read what the client sends."""
            client.sendall(said)
            if silent:
                time.sleep(SECONDS * 3)
            else:
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass

        server.serve = serve
        begun = time.monotonic()
        [(_, found)] = fan_out([Target("node2", "127.0.0.1", way_there)], _log_in, limits=limits)
        if found == 0:
            raise Reached("key", "a login at a stranger")
        if isinstance(found, GpuprovError):
            field.show(printable(str(found)), "the error of a connection")
        if time.monotonic() - begun > 10 * SECONDS:
            raise Reached("hang", f"{time.monotonic() - begun:.0f} s for a connection")

    return once


@way("stranger", "host keys", "key", "line", share=600)
def host_keys(field: Field) -> Try:
    """Try host keys that a node prints during bootstrap: they must be pinned for no other host."""
    from gpuprov.bootstrap.hostkeys import HostKeys
    from gpuprov.ssh.known_hosts import read_known_hosts

    path = field.work / "known_hosts"
    good = paramiko.ECDSAKey.generate()
    known = f"other ecdsa-sha2-nistp256 {good.get_base64()}"

    def once(rng: random.Random) -> None:
        """Make one try: pin a hostile line, and check what other hosts then have."""
        path.write_text(known + "\n")
        evil = rng.choice(
            (
                f"ecdsa-sha2-nistp256 {good.get_base64()} {payload(rng, field)}",
                f"ecdsa-sha2-nistp256 {good.get_base64()}\nother ssh-ed25519 AAAA",
                f"* ecdsa-sha2-nistp256 {good.get_base64()}",
                f"@cert-authority * {good.get_base64()}",
                payload(rng, field),
                f"{payload(rng, field, 'odd', 'terminal')} {good.get_base64()}",
            )
        )
        try:
            HostKeys(path, None).pin("gpu01", 22, [evil])
        except GpuprovError as error:
            field.show(printable(str(error)), "the error of a pin")
        lines = path.read_text().splitlines()
        if known not in lines:
            raise Reached("line", f"another host's line is gone: {lines}")
        if strays := [line for line in lines if line != known and not line.startswith("gpu01 ")]:
            raise Reached("key", f"a line for another host was pinned: {strays[0]!r}")
        found = read_known_hosts(path)
        if found.keys("gpu77") or list(found.keys("other")) != ["ecdsa-sha2-nistp256"]:
            raise Reached("key", f"keys of others: {lines}")

    return once
