"""Host keys at first contact: known, in a given file, or confirmed by the user; then pinned for the fleet."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import paramiko
from paramiko.pkey import UnknownKeyType

from gpuprov.errors import InvalidInput, Unreachable
from gpuprov.files.writing import append_lines, make_folders
from gpuprov.model.exclusive import exclusive
from gpuprov.ssh.failures import removal, stranger
from gpuprov.ssh.known_hosts import KnownFiles, known_files, names_of, parse_key, read_known_hosts
from gpuprov.ssh.route import Route
from gpuprov.untrusted.stated import stated_path


def fingerprint(key: paramiko.PKey) -> str:
    """Return a key's fingerprint as `ssh-keygen -l` prints it: `ED25519 SHA256:…`."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name().removeprefix('ssh-').upper()} SHA256:{digest}"


def host_keys(way: Route, given: Path | None = None) -> HostKeys:
    """Return the host keys of a route's files; raises as `HostKeys`."""
    first, *others = way.known_hosts
    return HostKeys(stated_path(first), given, others, way.revoked_keys)


class HostKeys:
    """The known-hosts files of a route, and a file of trusted keys for hosts that are not in them yet.

    Args:
        pinned: the file that new keys are added to, created when the first key is pinned.
        given: file of trusted keys, in the same format.
        others: the route's other known-hosts files.
        revoked: files of revoked keys.

    Raises:
        InvalidInput: a file cannot be read.
    """

    def __init__(
        self, pinned: Path, given: Path | None, others: Sequence[str] = (), revoked: Sequence[str] = ()
    ) -> None:
        self.path = pinned
        self._paths, self._revoked = (str(pinned), *others), revoked
        self._pinned = known_files(self._paths, revoked)
        self._vouched = read_known_hosts(given) if given else None

    def knows(self, address: str, port: int) -> bool:
        """Return whether one of the files lists a key of the host."""
        return bool(self._pinned.keys(*names_of(address, port)))

    def trusts(self, address: str, port: int, key: paramiko.PKey) -> bool:
        """Return whether the key is the host's; False if only the user can decide.

        Raises:
            Unreachable: the key differs from the pinned or given one, it is revoked, or `given` does not list
                the host.
            InvalidInput: a file of revoked keys cannot answer.
        """
        names = names_of(address, port)
        tables = [self._pinned, *([KnownFiles((self._vouched,))] if self._vouched else [])]
        for table in tables:
            if table.revocation(key, *names):
                raise stranger(address, table, key)
        for table in tables:
            known = table.keys(*names)
            if known.get(key.get_name()) == key:
                return True
            if known:
                path = table.listing(*names).path
                raise Unreachable(
                    f"the host key of {address} is {fingerprint(key)}, not the one in {path}",
                    do=removal(names[0], path),
                )
        if self._vouched is not None:
            raise Unreachable(
                f"{self._vouched.path} has no key of {address}",
                expected=f"its {fingerprint(key)}, if that is the right machine{self._vouched.complaint()}",
            )
        return False

    def pin(self, address: str, port: int, keys: Iterable[str]) -> int:
        """Add keys (`TYPE BASE64`) of a host to the fleet's file: one of each type that it does not have.

        A line of a node's output that is not a key is left out, since all later connections of the fleet read
        the file.

        Returns:
            number of lines left out.

        Raises:
            InvalidInput: the file cannot be read or written.
        """
        stated: dict[str, paramiko.PKey] = {}
        unread = 0
        for line in keys:
            try:
                kind, text = line.split()[:2]
                stated.setdefault(kind, parse_key(kind, text))
            except (ValueError, UnknownKeyType):
                unread += 1
        try:
            self._add(names_of(address, port), stated)
        except OSError as error:
            raise InvalidInput(f"{self.path} cannot be written: {error.strerror}") from error
        return unread

    def _add(self, names: tuple[str, ...], stated: dict[str, paramiko.PKey]) -> None:
        """Append keys of those types that the host does not have in the file yet, and read the file again.

        A lock of the file excludes other threads and runs; the file and its folders are created. Raises as
        `exclusive` and `append_lines`.
        """
        with exclusive(self.path):  # threads of this run and other runs pin keys, too
            make_folders(self.path.parent)
            known = known_files(self._paths, self._revoked).keys(*names)
            fresh = [key for kind, key in stated.items() if kind not in known]
            if fresh:
                append_lines(self.path, [f"{names[0]} {key.get_name()} {key.get_base64()}" for key in fresh])
            self._pinned = known_files(self._paths, self._revoked)
