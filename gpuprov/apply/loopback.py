"""Login through this machine's own sshd, if it is the node: the test that a change still allows logins.

There is no other machine to test from. A temporary key, which is valid only from this machine and for some
minutes, logs in as the fleet's user. The effect of the firewall on other machines is judged by its rules and
by the addresses of the current logins.
"""

from __future__ import annotations

import ipaddress
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpuprov.access.deadman import PROOF, Guard, as_root, last_line
from gpuprov.access.scripts import node_script
from gpuprov.errors import GpuprovError, NodeFailed, Refused
from gpuprov.files.writing import replace_file
from gpuprov.model.connection import NO_JUMP, Connection
from gpuprov.ssh.transport import Session, Target, open_session

LONGER_S = 900
"""Seconds that the key is valid beyond the guard's time, because a role may take a while."""
ANYWHERE = ("0.0.0.0", "::", "127.0.0.1", "::1")  # noqa: S104


@dataclass(frozen=True)
class Loopback:
    """Connection to this machine through its own sshd.

    Attributes:
        target: the node, reached over the network stack.
        sources: addresses from which others are logged in now.
    """

    target: Target
    sources: tuple[str, ...]
    session: Session
    folder: Path

    def read_host_keys(self, password: str | None) -> None:
        """Write the machine's current host keys, to trust them; a change may have created new ones. OSError
        if that is not possible.
        """
        output = as_root(self.session, _command("hostkeys"), password)
        host = self.target.address
        lines = [line for line in output.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
        replace_file(self.folder / "known_hosts", "".join(f"{host} {line}\n" for line in lines))


@contextmanager
def own_sshd(session: Session, guard: Guard) -> Iterator[Loopback]:
    """Set up a login through this machine's own sshd, test it, and remove its key at the end.

    Args:
        session: a session on this machine, without SSH.

    Raises:
        Refused: the login does not work even before a change; the message contains the remedy.
        NodeFailed: no key can be installed.
    """
    login = session.target.route.login
    with tempfile.TemporaryDirectory(prefix="gpuprov-loopback-") as name:
        folder = Path(name)
        kind, public = _new_key(folder / "key")
        add = _command("add", login, str(guard.seconds + LONGER_S), kind, public)
        output = as_root(session, add, guard.password)
        result = [line.split(maxsplit=1) for line in output.stdout.decode("utf-8", "replace").splitlines()]
        made = [rest for word, rest in result if word == "made"]
        file = next((rest for word, rest in result if word == "file"), "")
        if output.code or not file:
            raise NodeFailed(f"a login over this machine's own sshd cannot be tried: {last_line(output)}")
        try:
            listens = [rest for word, rest in result if word == "listens"]
            sources = {rest for word, rest in result if word == "source"}
            way = _target(session.target, _address(listens), folder)
            loopback = Loopback(way, _others(sources), session, folder)
            loopback.read_host_keys(guard.password)
            _try(loopback, guard)
            yield loopback
        finally:
            remove = _command("remove", file, public, *reversed(made))
            with suppress(GpuprovError):  # the key expires soon anyway
                as_root(session, remove, guard.password)


def _try(loopback: Loopback, guard: Guard) -> None:
    """Log in over sshd, and become root.

    Raises:
        Refused: one of them does not work.
    """
    login = loopback.target.route.user
    try:
        with open_session(loopback.target, PROOF) as session:
            output = as_root(session, "true", guard.password)
    except GpuprovError as error:
        raise Refused(
            f"{login} cannot log in over this machine's own sshd, even before the change: {error.seen}",
            do="state who logs in and where, ssh: {user: …, port: …} in fleet.yml, and lock again; or leave "
            "settings.ssh and settings.firewall out",
        ) from None
    if output.code:
        raise Refused(
            f"{login} can log in over sshd, but cannot become root: {last_line(output)}", do="allow it sudo"
        )


def _target(here: Target, address: str, folder: Path) -> Target:
    """Return the node at an address where its sshd listens, with the key and known_hosts of a folder."""
    way = Connection(
        user=here.route.login,
        port=here.route.port,
        identity_file=str(folder / "key"),
        known_hosts=str(folder / "known_hosts"),
        jump=NO_JUMP,
    )
    return Target(here.name, address, way)


def _new_key(path: Path) -> tuple[str, str]:
    """Create a key pair; return its type and its public key in base64.

    Raises:
        NodeFailed: ssh-keygen is not installed, or fails.
    """
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        raise NodeFailed("ssh-keygen makes no key here", do="install openssh-client") from None
    kind, public = path.with_suffix(".pub").read_text().split()[:2]
    return kind, public


def _address(listens: list[str]) -> str:
    """Return the address to test: loopback if sshd listens there, otherwise its first address.

    Args:
        listens: addresses with port, on which sshd listens; without any the result is 127.0.0.1.
    """
    hosts = [each.rpartition(":")[0].strip("[]") for each in listens]
    if not hosts or any(host in ANYWHERE[:1] + ANYWHERE[2:3] for host in hosts):
        return "127.0.0.1"
    return "::1" if any(host in ANYWHERE for host in hosts) else hosts[0]


def _others(sources: set[str]) -> tuple[str, ...]:
    """Return the addresses that are not loopback addresses, sorted as text; invalid ones are left out."""
    found = set()
    for text in sources:
        with suppress(ValueError):
            address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
            if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
                address = address.ipv4_mapped
            if not address.is_loopback:
                found.add(str(address))
    return tuple(sorted(found))


def _command(*words: str) -> str:
    """Return the shell command that runs throwaway.sh with arguments on this machine."""
    script = node_script("gpuprov.access", "node/throwaway.sh")
    return f"sh -c {shlex.quote(script)} throwaway.sh {shlex.join(words)}"
