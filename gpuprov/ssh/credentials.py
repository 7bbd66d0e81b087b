"""Credentials of a route, for Paramiko: private keys, their certificates, and those of an agent."""

from __future__ import annotations

import copy
import io
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from paramiko.agent import AgentSSH
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey
from paramiko.pkey import PublicBlob

from gpuprov.errors import InvalidInput
from gpuprov.ssh.reread import reread_when_written
from gpuprov.ssh.route import Route
from gpuprov.untrusted.private_keys import LARGEST, NeedsPassphrase, load_private_key
from gpuprov.untrusted.stated import read_bounded, stated_path


class Credentials(AuthStrategy):
    """All keys for the login of a route, in the order in which they are tried: files first, then the agent.

    Raises:
        InvalidInput: the key that the fleet names does not exist.

    Attributes:
        tried: names of the keys that were offered, for messages.
        beyond: key files that ssh can use and Paramiko cannot, such as those of a hardware key.
    """

    def __init__(self, route: Route) -> None:
        super().__init__(paramiko.SSHConfig())
        self._route = route
        if route.stated.identity_file:  # reported before any connection is opened
            _require(str(stated_path(route.stated.identity_file)))
        self.tried: list[str] = []
        self.beyond: list[str] = []

    def get_sources(self) -> Iterator[AuthSource]:
        """Yield the keys for Paramiko, see `AuthStrategy`.

        Raises:
            InvalidInput: the key that the fleet names cannot be used.
        """
        for name, key in self.keys():
            self.tried.append(name)
            yield InMemoryPrivateKey(self._route.user, key)

    def keys(self) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield each key with its name for messages.

        With `identities_only` a key of the agent is yielded only if `PATH.pub` of one of the route's files
        has it, and none if the fleet names a key.

        Raises:
            InvalidInput: the key that the fleet names cannot be used.
        """
        certificates = [read for path in self._route.certificate_files if (read := _certificate(path))]
        for path in self._route.identity_files:
            yield from self._of_file(path, certificates)
        if self._route.stated.identity_file and self._route.identities_only:
            return
        wanted = {_public_part(path) for path in self._route.identity_files}
        for key in _agent_keys(self._route.agent):
            if self._route.identities_only and key.asbytes() not in wanted:
                continue
            for blob in _fitting(key, certificates):
                key.public_blob = blob  # type: ignore[assignment]
                yield f"{key.get_name()} of the agent with its certificate", key
                key.public_blob = None
            yield f"{key.get_name()} of the agent", key

    def _of_file(self, path: str, certificates: list[PublicBlob]) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the key in a file with each of its certificates, then without; each with a name for messages.

        A file that Paramiko cannot use is added to `beyond`.

        Raises:
            InvalidInput: it is the key that the fleet names, and cannot be used.
        """
        place = str(stated_path(path))
        try:
            key = private_key(place)
        except InvalidInput:
            if self._route.stated.identity_file == path:
                raise
            if Path(place).is_file():
                self.beyond.append(path)
            return
        beside = _certificate(f"{path}-cert.pub")
        for blob in [*filter(None, [beside]), *_fitting(key, certificates)]:
            certified = copy.copy(key)
            certified.public_blob = blob
            yield f"the key {path} with its certificate", certified
        yield f"the key {path}", key


def _require(path: str) -> None:
    """Check that a key file exists; raise InvalidInput if it does not."""
    if not Path(path).is_file():
        raise InvalidInput(
            f"the key {path} does not exist", do="correct --identity, or ssh.identity_file in fleet.yml"
        )


def private_key(path: str) -> paramiko.PKey:
    """Return the private key in a file, with the certificate `PATH-cert.pub` if there is one; a changed file
    is read again.

    Raises:
        InvalidInput: the file does not exist, needs a passphrase, cannot be read, or it or its certificate is
            empty or larger than `LARGEST`.
    """
    _require(path)
    for each in (path, f"{path}-cert.pub"):
        if Path(each).is_file() and not _is_small(Path(each)):
            raise InvalidInput(f"{each} is empty or larger than {LARGEST} bytes", expected="a key of SSH")
    return _private_key(Path(path))


@reread_when_written
def _private_key(path: Path) -> paramiko.PKey:
    """Return the private key in a file that exists.

    Raises:
        InvalidInput: it needs a passphrase, or cannot be read.
    """
    try:
        key = _for_paramiko(read_bounded(path, LARGEST))
        if (beside := Path(f"{path}-cert.pub")).exists():
            key.load_certificate(str(beside))
    except NeedsPassphrase:
        raise InvalidInput(
            f"the key {path} asks for a passphrase",
            do="ssh-add it and leave ssh.identity_file out of fleet.yml",
        ) from None
    except (OSError, ValueError, paramiko.SSHException) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise InvalidInput(f"the key {path} cannot be read: {said[0]}") from None
    return key


def _for_paramiko(content: bytes) -> paramiko.PKey:
    """Return the private key in a file's content; Paramiko's own reader loads it several times, and checks
    its primes each time.

    Raises:
        NeedsPassphrase: it is encrypted.
        ValueError, SSHException: it is no key that Paramiko can use.
    """
    key = load_private_key(content)
    if isinstance(key, RSAPrivateKey):
        return paramiko.RSAKey(key=key)
    kind = paramiko.Ed25519Key if isinstance(key, Ed25519PrivateKey) else paramiko.ECDSAKey
    form = serialization.PrivateFormat.OpenSSH
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return kind.from_private_key(io.StringIO(text.decode()))


def _is_small(path: Path) -> bool:
    """Return whether a file that exists has between 1 and `LARGEST` bytes: Paramiko reads it whole.

    With 0 it may be one of /proc, see `open_stated`.
    """
    return 0 < path.stat().st_size <= LARGEST


def _certificate(path: str) -> PublicBlob | None:
    """Return the certificate or public key in a file; None if it is unreadable or exceeds `LARGEST`."""
    place = stated_path(path)
    if not place.is_file() or not _is_small(place):
        return None
    try:
        return PublicBlob.from_file(str(place))
    except (OSError, ValueError, paramiko.SSHException):
        return None


def _public_part(path: str) -> bytes:
    """Return the public key in the file `PATH.pub`; empty if it cannot be read."""
    blob = _certificate(f"{path}.pub")
    return blob.key_blob if blob else b""


def _fitting(key: paramiko.PKey, certificates: list[PublicBlob]) -> list[PublicBlob]:
    """Return the certificates of a key: they contain the same numbers as the key (PROTOCOL.certkeys)."""
    whole = key.asbytes()
    numbers = whole[4 + int.from_bytes(whole[:4], "big") :]
    return [blob for blob in certificates if numbers in blob.key_blob]


class _AgentAt(AgentSSH):
    """An agent at a given socket; Paramiko's own class connects only to the environment's agent."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        self._connect(connection)  # type: ignore[attr-defined]


def _agent_keys(agent: str | None) -> tuple[paramiko.AgentKey, ...]:
    """Return the keys of the agent at a socket, by default the environment's; none for `none`; none if it
    does not answer.
    """
    path = os.environ.get("SSH_AUTH_SOCK") if agent is None else agent
    if not path or path == "none":
        return ()
    try:
        return tuple(_AgentAt(str(stated_path(path))).get_keys())
    except (OSError, paramiko.SSHException):
        return ()
