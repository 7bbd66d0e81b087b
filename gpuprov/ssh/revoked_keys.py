"""Files of `RevokedHostKeys` (ssh_config(5)): public keys, one in a line, or OpenSSH's binary list."""

from __future__ import annotations

import subprocess
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprov.errors import InvalidInput
from gpuprov.ssh.reread import reread_when_written
from gpuprov.untrusted.stated import read_bounded, stated_path

if TYPE_CHECKING:
    import paramiko

_BINARY = b"SSHKRL\n\0"
"""Beginning of a key revocation list: PROTOCOL.krl of OpenSSH, which only `ssh-keygen` reads here."""
_TIMEOUT_S = 10


@dataclass(frozen=True)
class RevokedKeys:
    """The contents of one file.

    Attributes:
        lines: key as its bytes → number of its line.
        binary: whether it is a list that only `ssh-keygen` reads.
    """

    path: Path
    lines: dict[bytes, int]
    binary: bool = False

    def place_of(self, key: paramiko.PKey) -> str | None:
        """Return `FILE` or `FILE:LINE` where a key is revoked; None if it is not.

        Raises:
            InvalidInput: `ssh-keygen` is missing or cannot read the file.
        """
        if self.binary:
            return str(self.path) if self._lists(key) else None
        number = self.lines.get(key.asbytes())
        return f"{self.path}:{number}" if number else None

    def _lists(self, key: paramiko.PKey) -> bool:
        """Return whether `ssh-keygen -Q`, run here, finds a key in the list.

        Raises:
            InvalidInput: ssh-keygen cannot be run, does not answer within `_TIMEOUT_S`, or cannot read the
                list.
        """
        asked = f"{key.get_name()} {key.get_base64()}\n"
        command = ["ssh-keygen", "-Q", "-f", str(self.path), "/dev/stdin"]
        try:
            done = subprocess.run(
                command, input=asked, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _unusable(self.path, f"ssh-keygen -Q: {error}") from error
        if done.returncode and not done.stdout.rstrip().endswith(": REVOKED"):
            raise _unusable(self.path, done.stderr.strip() or "no answer of ssh-keygen -Q")
        return done.returncode != 0


def _unusable(path: Path, why: str) -> InvalidInput:
    """Return the error for a file that cannot answer: like ssh, gpuprov then trusts no host."""
    return InvalidInput(
        f"RevokedHostKeys {path} cannot be used: {why}",
        expected="public keys, one in a line, or a list of `ssh-keygen -k`",
        do="correct the file or its name in ssh's configuration: until then no host key is trusted",
    )


def _read(path: Path) -> RevokedKeys:
    """Return the contents of a file.

    Raises:
        InvalidInput: it cannot be read, or a line has no readable key.
    """
    try:
        content = read_bounded(path)
    except OSError as error:
        raise _unusable(path, error.strerror or "unreadable") from error
    if content.startswith(_BINARY):
        return RevokedKeys(path, {}, binary=True)
    found: dict[bytes, int] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        try:
            kind, text = fields[:2]
            blob = b64decode(text, validate=True)
        except ValueError:
            raise _unusable(path, f"line {number} is not TYPE KEY") from None
        if not blob.startswith(len(kind).to_bytes(4, "big") + kind.encode()):
            raise _unusable(path, f"line {number} has no key of the type {kind}")
        found.setdefault(blob, number)
    return RevokedKeys(path, found)


_reread = reread_when_written(_read)


def revoked_keys(path: str) -> RevokedKeys:
    """Return the contents of a file of revoked keys; a changed file is read again.

    Raises:
        InvalidInput: it does not exist or cannot be read, or a line has no readable key.
    """
    place = stated_path(path)
    try:
        return _reread(place)
    except OSError as error:
        raise _unusable(place, error.strerror or "unreadable") from error
