"""Known-hosts files as ssh reads them: patterns, hashed names, markers; a broken line affects no other line.

The format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"; patterns: ssh_config(5), "PATTERNS". Paramiko's own reader
stops at the first key that does not decode, and ignores markers: it would accept a revoked key.
"""

from __future__ import annotations

import errno
import hmac
import re
import shlex
import stat
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprov.errors import InvalidInput
from gpuprov.ssh.reread import LARGEST, SMALLER, reread_when_written
from gpuprov.ssh.revoked_keys import RevokedKeys, revoked_keys
from gpuprov.ssh.strings import strings_of
from gpuprov.untrusted.stated import read_bounded, stated_path

if TYPE_CHECKING:  # it takes 0.1 s, and commands that leave the connection to ssh read no key
    import paramiko

KNOWN_HOSTS = "~/.ssh/known_hosts"
LONGEST = 512
"""Maximum length of a pattern with wildcards; a host name has at most 253 characters."""
LINE, HASHED, PATTERN = 64, 192, 640
"""Least number of bytes that each line and each of its names counts, and each 64 characters of a name that
is compared with every host's, by the time that this takes: of a hashed name, and of a pattern."""
NAMED = 3
"""Number of broken lines that a message names."""
KEY_BYTES = 4096
"""Maximum size of a key in bytes: RSA with 16,384 bits has 2,100. Paramiko takes the square of it in time."""
REVOKED, AUTHORITY = "@revoked", "@cert-authority"


def names_of(address: str, port: int) -> tuple[str, ...]:
    """Return the names under which a host's keys may be listed, the exact name first.

    As in ssh, a key that is listed for the address is valid on any of its ports.
    """
    return (address,) if port == 22 else (f"[{address}]:{port}", address)


def parse_key(kind: str, text: str) -> paramiko.PKey:
    """Return a public key from its type and its base64.

    Raises:
        UnknownKeyType: Paramiko does not support the type.
        ValueError: not exactly one complete key of that type, or larger than `KEY_BYTES`.
    """
    import paramiko
    from paramiko.pkey import UnknownKeyType

    blob = _decoded(text)
    if len(blob) > KEY_BYTES:
        raise ValueError(f"a key of {len(blob)} bytes, more than {KEY_BYTES}")
    if "-cert-" in kind:
        raise ValueError("a certificate, not a key")
    if kind.startswith(("ssh-", "ecdsa-")):  # the others Paramiko does not read
        strings_of(blob)
    try:
        key = paramiko.PKey.from_type_string(kind, blob)
        same = key.asbytes() == blob and key.get_name() == kind
    except UnknownKeyType:
        raise
    except Exception as error:
        raise ValueError(f"not a key of the type {kind}") from error
    if not same:
        raise ValueError(f"not a key of the type {kind}")
    return key


def _decoded(text: str) -> bytes:
    """Return the bytes that a base64 text encodes; raise ValueError if it is not base64."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ValueError("not base64") from None


class _Host:
    """A host's name, which names and patterns of lines are compared with."""

    def __init__(self, name: str) -> None:
        """Keep the name in lower case."""
        self.name = name.lower()

    @cached_property
    def _places(self) -> dict[str, int]:
        """Character → a number with a bit for each place where the name has it; `*` → a bit for each end."""
        places = {"*": (2 << len(self.name)) - 1}
        for place, character in enumerate(self.name):
            places[character] = places.get(character, 0) | 1 << place
        return places

    def fits(self, pattern: str) -> bool:
        """Return whether the name fits a pattern in lower case: `*` is any text, `?` one character.

        Bit N of `ends`: the name's first N characters fit what was read of the pattern. To compile a regular
        expression takes a hundred times as long.
        """
        if not _is_pattern(pattern):
            return pattern == self.name
        places, ends = self._places, 1
        for character in pattern:
            if character == "*":
                ends = places["*"] & -(ends & -ends)
            elif character == "?":
                ends = places["*"] & ends << 1
            else:
                ends = (ends & places.get(character, 0)) << 1
            if not ends:
                return False
        return bool(ends >> len(self.name))


@dataclass(frozen=True, slots=True)
class _Line:
    """A line `[MARKER] NAMES TYPE KEY [COMMENT]`.

    Attributes:
        names: in lower case.
        key: missing if Paramiko does not support the type.
        hashed: salt and digest of a hashed name.
        compared: number of bytes that its names count, `HASHED` or `PATTERN`; 0 for plain names, which are
            looked up.
    """

    number: int
    marker: str
    names: Sequence[str]
    blob: bytes
    key: paramiko.PKey | None
    hashed: tuple[bytes, bytes] | None
    compared: int

    def matches(self, host: _Host) -> bool:
        """Return whether a host's name matches the line's names: hashed, plain or patterns.

        A matching pattern with `!` excludes the name.
        """
        if self.hashed:
            salt, digest = self.hashed
            return hmac.digest(salt, host.name.encode(), "sha1") == digest
        if any(host.fits(each[1:]) for each in self.names if each.startswith("!")):
            return False
        return any(map(host.fits, self.names))


_COMPARED = re.compile(r"[*?!|]")


def _is_pattern(name: str) -> bool:
    """Return whether a name of a line has a wildcard."""
    return "*" in name or "?" in name


def _parse(number: int, text: str) -> _Line | None:
    """Parse one line; return None if it is empty or a comment.

    Raises:
        ValueError: the line is broken.
    """
    from paramiko.pkey import UnknownKeyType

    fields = re.split(r"[ \t]+", text.strip(" \t\r"), maxsplit=4)
    if not fields[0] or fields[0].startswith("#"):
        return None
    marker = fields.pop(0) if fields[0].startswith("@") else ""
    if marker not in ("", REVOKED, AUTHORITY) or len(fields) < 3:
        raise ValueError("not [MARKER] NAMES TYPE KEY")
    names, kind, stated = fields[:3]
    hashed = None
    if names.startswith("|"):
        _, version, *parts = names.split("|")
        if version != "1" or len(parts) != 2 or not all(hashed := (_decoded(parts[0]), _decoded(parts[1]))):
            raise ValueError("not a hashed name")
    elif any(len(each) > LONGEST and _is_pattern(each) for each in names.split(",")):
        raise ValueError(f"a pattern of more than {LONGEST} characters")
    try:
        key = parse_key(kind, stated)
    except UnknownKeyType:
        key = None
    compared = 0
    if _COMPARED.search(names):
        compared = (HASHED if hashed else PATTERN) * (1 + names.count(",") + len(names) // 64)
    return _Line(number, marker, names.lower().split(","), _decoded(stated), key, hashed, compared)


@dataclass
class KnownHosts:
    """The contents of one file.

    Attributes:
        broken: number of each of the first lines that are not used, at most `NAMED` → what is wrong with it.
        more_broken: number of further lines that are not used.
        size: number of bytes that the file counts; see `LINE`.
    """

    path: Path
    broken: dict[int, str] = field(default_factory=dict)
    more_broken: int = 0
    size: int = 0
    _plain: dict[str, list[_Line]] = field(default_factory=dict)
    _patterns: list[_Line] = field(default_factory=list)
    _revoked: dict[bytes, list[_Line]] = field(default_factory=dict)

    def take(self, text: str) -> None:
        """Add the lines of the file's text.

        Raises:
            InvalidInput: it has too many lines or names, or a line that revokes a key has no readable key.
        """
        self._count(LINE * (text.count("\n") + text.count(",")))
        for number, line in enumerate(text.split("\n"), 1):
            try:
                parsed = _parse(number, line)
            except ValueError as error:
                if line.lstrip(" \t").startswith(REVOKED):
                    raise InvalidInput(
                        f"{self.path}:{number}: {REVOKED} has no readable key: {error}",
                        do="correct the line: until then no key of the file is trusted",
                    ) from error
                if len(self.broken) < NAMED:
                    self.broken[number] = str(error)
                else:
                    self.more_broken += 1
                continue
            if parsed:
                self._count(parsed.compared)
                self._place(parsed)

    def _count(self, size: int) -> None:
        """Add to the number of bytes that the file counts; raise InvalidInput if it exceeds `LARGEST`."""
        self.size += size
        if self.size > LARGEST:
            raise InvalidInput(
                f"{self.path} has too many lines and names",
                expected=f"at most {LARGEST // LINE}, of which a hashed name counts as {HASHED // LINE}"
                f" and a pattern as {PATTERN // LINE}",
                do=SMALLER,
            )

    def _place(self, line: _Line) -> None:
        """Add a line to those with plain names, patterns or revoked keys; ignore unusable lines."""
        if line.marker == REVOKED:
            self._revoked.setdefault(line.blob, []).append(line)
        elif line.marker or line.key is None:
            return  # Paramiko requests neither host certificates nor keys of types that it does not support
        elif line.compared:
            self._patterns.append(line)
        else:
            for name in line.names:
                self._plain.setdefault(name, []).append(line)

    def keys(self, *names: str) -> dict[str, paramiko.PKey]:
        """Return type → key of a host, as `KnownFiles.keys`, from only this file."""
        return KnownFiles((self,)).keys(*names)

    def listed(self, name: str) -> Iterator[tuple[bytes, paramiko.PKey]]:
        """Yield bytes and key for each line of a name, also of revoked keys: plain names, then patterns."""
        host = _Host(name)
        lines = chain(self._plain.get(host.name, ()), (line for line in self._patterns if line.matches(host)))
        yield from ((line.blob, line.key) for line in lines if line.key)

    def revocation(self, key: paramiko.PKey, *names: str) -> str | None:
        """Return `FILE:LINE` where a key is revoked for a host with one of these names; None if it is not.

        Without names, a revocation for any host counts.
        """
        hosts = [_Host(name) for name in names]
        for line in self._revoked.get(key.asbytes(), ()):
            if not hosts or any(map(line.matches, hosts)):
                return f"{self.path}:{line.number}"
        return None

    def complaint(self) -> str:
        """Return the first broken lines for the end of a message, with the number of others.

        Empty if no line is broken.
        """
        lines = [f"; {self.path}:{number} is {said}" for number, said in self.broken.items()]
        more = f" and {self.more_broken} lines more" if self.more_broken else ""
        return "".join(lines) + more


@dataclass(frozen=True)
class KnownFiles:
    """The known-hosts files of a route as one table, as ssh reads them: a revocation in any of them counts.

    Attributes:
        files: at least one; new keys are added to the first.
        revoked: contents of `RevokedHostKeys`.
    """

    files: Sequence[KnownHosts]
    revoked: Sequence[RevokedKeys] = ()

    def keys(self, *names: str) -> dict[str, paramiko.PKey]:
        """Return type → key of a host, for the first of its names that has any; revoked keys are left out.

        If several keys of a type are listed for the name, the first one counts. {} for an unknown host.

        Raises:
            InvalidInput: a file of revoked keys cannot answer.
        """
        revoked: set[bytes] = set()
        for name in names:
            found: dict[str, paramiko.PKey] = {}
            for blob, key in (each for file in self.files for each in file.listed(name)):
                if blob in revoked or key.get_name() in found:
                    continue
                if self.revocation(key, *names):
                    revoked.add(blob)
                else:
                    found[key.get_name()] = key
            if found:
                return found
        return {}

    def revocation(self, key: paramiko.PKey, *names: str) -> str | None:
        """Return the place where a key is revoked for a host, or for any host without names; else None.

        Raises:
            InvalidInput: a file of revoked keys cannot answer.
        """
        listed = (file.revocation(key, *names) for file in self.files)
        return next(filter(None, chain(listed, (each.place_of(key) for each in self.revoked))), None)

    def listing(self, *names: str) -> KnownHosts:
        """Return the first file that lists a key for one of a host's names; the first file for an unknown
        host.
        """
        known = (file for name in names for file in self.files if any(file.listed(name)))
        return next(known, self.files[0])

    def complaint(self) -> str:
        """Return the broken lines of all files, as `KnownHosts.complaint` does for each."""
        return "".join(file.complaint() for file in self.files)


def known_files(paths: Sequence[str], revoked: Sequence[str] = ()) -> KnownFiles:
    """Return the contents of a route's known-hosts files, and of its files of revoked keys.

    Raises:
        InvalidInput: as `known_hosts` and `revoked_keys`.
    """
    return KnownFiles(tuple(map(known_hosts, paths)), tuple(map(revoked_keys, revoked)))


def read_known_hosts(path: Path) -> KnownHosts:
    """Return the contents of a known-hosts file.

    Raises:
        InvalidInput: the file cannot be read, is larger than `LARGEST`, every user can write it, or as
            `KnownHosts.take`.
    """
    found = KnownHosts(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
            raise InvalidInput(
                f"{path} can be written by every user of this machine",
                expected="a file that only its owner can write",
                do=f"check the keys in it, then `chmod o-w {shlex.quote(str(path))}`",
            )
        text = read_bounded(path, LARGEST)
    except OSError as error:
        do = SMALLER if error.errno == errno.EFBIG else ""
        raise InvalidInput(
            f"{path} cannot be read: {error.strerror}", expected="a known-hosts file", do=do
        ) from error
    found.take(text.decode("utf-8", "replace"))
    return found


def known_hosts(path: str | None) -> KnownHosts:
    """Return the contents of the file that a connection names; a changed file is read again.

    The result is empty if the file does not exist.

    Args:
        path: as stated; None for ssh's own file.

    Raises:
        InvalidInput: as `read_known_hosts`.
    """
    place = stated_path(path or KNOWN_HOSTS)
    return _reread(place) if place.exists() else KnownHosts(place)


_reread = reread_when_written(read_known_hosts, lambda found: found.size)
