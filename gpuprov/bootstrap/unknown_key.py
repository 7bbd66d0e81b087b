"""The host key of one server that is not known yet: shown, used for reading, and pinned after consent."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import paramiko

from gpuprov.bootstrap.contact import Login, reach
from gpuprov.bootstrap.hostkeys import HostKeys, fingerprint, host_keys
from gpuprov.errors import InvalidInput
from gpuprov.files.writing import replace_file
from gpuprov.ssh.transport import Target
from gpuprov.untrusted.stated import read_bounded, stated_path


@dataclass(frozen=True)
class UnknownKey:
    """The host key that a server has proved to have, and that no known-hosts file of its route lists.

    Attributes:
        vouched: whether the user's own file of trusted keys lists it.
    """

    target: Target
    key: paramiko.PKey
    vouched: bool

    @property
    def fingerprint(self) -> str:
        """Its fingerprint as `ssh-keygen -l` prints it: `ED25519 SHA256:…`."""
        return fingerprint(self.key)

    def pin(self) -> None:
        """Add the key to the first known-hosts file of the server's route.

        Raises:
            InvalidInput: the file cannot be read or written.
        """
        self._pin(host_keys(self.target.route))

    @contextmanager
    def meanwhile(self) -> Iterator[Path]:
        """Provide a temporary known-hosts file with this key, to read the server before the key is trusted.

        It also has the lines of the fleet's file, which counts for jump hosts, with the keys that it revokes.

        Raises:
            InvalidInput: the fleet's file cannot be read.
        """
        with tempfile.TemporaryDirectory(prefix="gpuprov-up-") as folder:
            path = Path(folder) / "known_hosts"
            if self.target.connection.known_hosts is not None:
                replace_file(path, _content(stated_path(self.target.connection.known_hosts)))
            self._pin(HostKeys(path, None))
            yield path

    def _pin(self, file: HostKeys) -> None:
        """Add the key to a file, under the name that ssh looks for; raises as `HostKeys.pin`."""
        file.pin(*self.target.route.pinned_as, [f"{self.key.get_name()} {self.key.get_base64()}"])


def _content(path: Path) -> bytes:
    """Return the content of a known-hosts file, with an end of its last line; empty if there is no file.

    Raises:
        InvalidInput: it cannot be read.
    """
    try:
        return read_bounded(path).rstrip(b"\n") + b"\n"
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read: {error.strerror}", expected="a known-hosts file"
        ) from error


def unknown_key(target: Target, given: Path | None) -> UnknownKey | None:
    """Return the host key of a server without a login; None if a known-hosts file of its route has one.

    Args:
        given: the user's own file of trusted keys.

    Raises:
        Unreachable: no SSH server answers, its key is revoked, or `given` does not list it.
        InvalidInput: a file, or ssh's own configuration, cannot be read.
    """
    way = target.route
    keys = host_keys(way, given)
    if keys.knows(*way.pinned_as):
        return None
    stated = target.connection
    contact = reach(target.name, target.address, stated, Login(stated.user, stated.port))
    try:
        key = contact.host_key
    finally:
        contact.close()
    return UnknownKey(target, key, keys.trusts(*way.pinned_as, key))
