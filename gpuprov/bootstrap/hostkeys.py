"""Host keys at first contact: known, proved by a file, or shown to a person; then pinned for the fleet."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

import paramiko

from gpuprov.errors import Unreachable
from gpuprov.ssh.known_hosts import read_known_hosts


def host_name(address: str, port: int) -> str:
    """What a host is called in a known-hosts file."""
    return address if port == 22 else f"[{address}]:{port}"


def fingerprint(key: paramiko.PKey) -> str:
    """As `ssh-keygen -l` shows it: `ED25519 SHA256:…`."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name().removeprefix('ssh-').upper()} SHA256:{digest}"


class HostKeys:
    """The fleet's known-hosts file, and a file whose word is taken for hosts that are not in it yet.

    Args:
        pinned: the fleet's; made when the first key is pinned.
        given: keys that somebody vouches for, in the same format.
    """

    def __init__(self, pinned: Path, given: Path | None) -> None:
        self.path, self._given = pinned, given
        self._pinned = read_known_hosts(pinned) if pinned.exists() else paramiko.HostKeys()
        self._vouched = read_known_hosts(given) if given else None

    def knows(self, address: str, port: int) -> bool:
        """Whether a key of the host is pinned."""
        return bool(self._lookup(self._pinned, address, port))

    def trusts(self, address: str, port: int, key: paramiko.PKey) -> bool:
        """Whether the key is the host's; False when nobody can say but a person.

        Raises:
            Unreachable: it is another than the one known or vouched for, or `given` does not name the host.
        """
        for keys, source in ((self._pinned, self.path), (self._vouched, self._given)):
            known = self._lookup(keys, address, port) if keys else {}
            if not known:
                continue
            if known.get(key.get_name()) == key.asbytes():
                return True
            raise Unreachable(
                f"the host key of {address} is {fingerprint(key)}, another than in {source}",
                do="make sure that it is the right machine, then remove the old key with "
                f"`ssh-keygen -R '{host_name(address, port)}' -f {source}`",
            )
        if self._vouched is not None:
            raise Unreachable(
                f"{self._given} has no key of {address}",
                expected=f"its {fingerprint(key)}, if that is the machine",
            )
        return False

    def pin(self, address: str, port: int, keys: Iterable[str]) -> bool:
        """Write keys (`TYPE BASE64`) of a host down; True when one of them was new."""
        name, known = host_name(address, port), self._lookup(self._pinned, address, port)
        fresh = [line for line in keys if line.split()[0] not in known]
        if fresh:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="ascii") as file:
                file.writelines(f"{name} {line}\n" for line in fresh)
            self._pinned.load(str(self.path))
        return bool(fresh)

    @staticmethod
    def _lookup(keys: paramiko.HostKeys, address: str, port: int) -> dict[str, bytes]:
        found = keys.lookup(host_name(address, port)) or keys.lookup(address)
        return {kind: key.asbytes() for kind, key in found.items()} if found else {}
