"""Known-hosts files as ssh reads them: patterns, hashed names, markers; a broken line affects no other line.

The format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"; patterns: ssh_config(5), "PATTERNS". Paramiko's own reader
stops at the first key that does not decode, and ignores markers: it would accept a revoked key.
"""

from __future__ import annotations

import errno
import hmac
import re
import stat
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprov.errors import InvalidInput
from gpuprov.ssh.reread import LARGEST, SMALLER, reread_when_written
from gpuprov.ssh.revoked_keys import RevokedKeys, revoked_keys
from gpuprov.untrusted.stated import read_bounded, stated_path

if TYPE_CHECKING:  # it takes 0.1 s, and commands that leave the connection to ssh read no key
    import paramiko

KNOWN_HOSTS = "~/.ssh/known_hosts"
LONGEST = 512
"""Maximum length of a pattern with wildcards; a host name has at most 253 characters."""
LINE, COMPARED = 64, 192
"""Least number of bytes that each line and each of its names counts, and each 64 characters of a name that
is compared with every host's: a hashed name or a pattern."""
NAMED = 3
"""Number of broken lines that a message names."""
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
        ValueError: not exactly one complete key of that type.
    """
    import paramiko
    from paramiko.pkey import UnknownKeyType

    blob = _decoded(text)
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


@dataclass(frozen=True, slots=True)
class _Line:
    """A line `[MARKER] NAMES TYPE KEY [COMMENT]`.

    Attributes:
        key: missing if Paramiko does not support the type.
        hashed: salt and digest of a hashed name.
    """

    number: int
    marker: str
    names: str
    blob: bytes
    key: paramiko.PKey | None
    hashed: tuple[bytes, bytes] | None = None

    @property
    def compared(self) -> int:
        """Number of bytes that its names count, `COMPARED`; 0 for plain names, which are looked up."""
        if not _COMPARED.search(self.names):
            return 0
        return COMPARED * (1 + self.names.count(",") + len(self.names) // 64)

    def matches(self, name: str) -> bool:
        """Return whether a host's name, given in lower case, matches the line's names: hashed, plain or
        patterns.

        A matching pattern with `!` excludes the name.
        """
        if self.hashed:
            salt, digest = self.hashed
            return hmac.digest(salt, name.encode(), "sha1") == digest
        patterns = self.names.lower().split(",")
        if any(_fits(each[1:], name) for each in patterns if each.startswith("!")):
            return False
        return any(_fits(each, name) for each in patterns)


def _fits(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern: `*` is any text, `?` one character; brackets are literal."""
    if not _is_pattern(pattern):
        return pattern == name
    return fnmatchcase(name, pattern.replace("[", "[[]"))


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
    return _Line(number, marker, names, _decoded(stated), key, hashed)


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
                expected=f"at most {LARGEST // LINE}, of which a hashed name or a pattern counts as"
                f" {COMPARED // LINE}",
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
            for name in line.names.lower().split(","):
                self._plain.setdefault(name, []).append(line)

    def keys(self, *names: str) -> dict[str, paramiko.PKey]:
        """Return type → key of a host, as `KnownFiles.keys`, from only this file."""
        return KnownFiles((self,)).keys(*names)

    def listed(self, name: str) -> Iterator[paramiko.PKey]:
        """Yield the keys for a name, also revoked ones: those of plain names, then those of patterns."""
        name = name.lower()
        lines = (*self._plain.get(name, ()), *(line for line in self._patterns if line.matches(name)))
        yield from (line.key for line in lines if line.key)

    def revocation(self, key: paramiko.PKey, *names: str) -> str | None:
        """Return `FILE:LINE` where a key is revoked for a host with one of these names; None if it is not.

        Without names, a revocation for any host counts.
        """
        for line in self._revoked.get(key.asbytes(), ()):
            if not names or any(line.matches(name.lower()) for name in names):
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
        for name in names:
            found: dict[str, paramiko.PKey] = {}
            for key in (key for file in self.files for key in file.listed(name)):
                if key.get_name() not in found and not self.revocation(key, *names):
                    found[key.get_name()] = key
            if found:
                return found
        return {}

    def revocation(self, key: paramiko.PKey, *names: str) -> str | None:
        """Return the place where a key is revoked for a host, or for any host without names; else None.

        Raises:
            InvalidInput: a file of revoked keys cannot answer.
        """
        places = (file.revocation(key, *names) for file in self.files)
        return next(filter(None, (*places, *(each.place_of(key) for each in self.revoked))), None)

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
                do=f"check the keys in it, then `chmod o-w {path}`",
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
