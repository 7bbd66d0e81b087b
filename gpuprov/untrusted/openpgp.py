"""OpenPGP public keys as files and as text: the contents of a keyring, and a check that it has only one key.

Packets and armor follow RFC 4880. gpgv checks signatures, see `signature`.
"""

from __future__ import annotations

import base64
import hashlib
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from gpuprov.errors import InvalidInput
from gpuprov.untrusted.stated import read_bounded

BEGIN, END = "-----BEGIN PGP PUBLIC KEY BLOCK-----", "-----END PGP PUBLIC KEY BLOCK-----"

PUBLIC_KEY = 6
PARTS = (2, 13, 14, 17)
"""Tags of the packets that may follow a primary key: signature, user ID, subkey, user attribute (RFC 4880,
sections 4.3 and 11.1)."""

LARGEST = 1 << 20
"""Maximum size of a keyring in bytes; Debian's has 60,000. A lock contains it."""
PACKETS = 1 << 14
"""Maximum number of packets of a keyring; Debian's has less than a thousand."""

Keys = Path | bytes
"""A keyring file, or the keys themselves; binary or armored."""

UNSIGNED: Final = "unsigned"
Keyring = Keys | Literal["unsigned"]
"""Keys that may sign a repository, or `unsigned` for a repository that is used without signatures."""


def label(keyring: Keys) -> str:
    """Return the name of a keyring for messages: its path, or `the keys given` for keys without a file."""
    return str(keyring) if isinstance(keyring, Path) else "the keys given"


def binary(keyring: Keys) -> bytes:
    """Return keys in the form that gpgv reads: every armored block decoded (RFC 4880, section 6.2).

    The checksums of armor are not verified. Content without armor is returned unchanged.

    Raises:
        InvalidInput: the file cannot be read, the keys have more than `LARGEST` bytes, or their armor does
            not decode or has no complete block.
    """
    try:
        content = read_bounded(keyring, LARGEST) if isinstance(keyring, Path) else keyring
    except OSError as error:
        raise InvalidInput(
            f"keyring {label(keyring)}: {error.strerror}", do="name the repository's key file"
        ) from error
    if len(content) > LARGEST:
        raise InvalidInput(f"keyring {label(keyring)}: larger than {LARGEST} bytes", expected="only its keys")
    if not content.lstrip().startswith(b"-----BEGIN PGP"):
        return content
    blocks = _blocks(content.decode("ascii", errors="replace").replace("\r\n", "\n"))
    try:
        found = b"".join(_unarmor(block) for block in blocks)
    except ValueError as error:
        raise InvalidInput(f"keyring {label(keyring)}: {error}", expected="an armored public key") from error
    if not found:
        raise InvalidInput(
            f"keyring {label(keyring)}: no complete armored block", expected="an armored public key"
        )
    return found


def _blocks(text: str) -> Iterator[str]:
    """Yield the text between each BEGIN and the next END; a block without an END is left out."""
    for piece in text.split(END)[:-1]:
        _, begin, block = piece.partition(BEGIN)
        if begin:
            yield block


def _unarmor(block: str) -> bytes:
    """Return the content of one armored block, without its headers and its checksum.

    Raises:
        ValueError: it is not base64.
    """
    _, _, body = block.partition("\n\n")
    data = "".join(line for line in body.split() if not line.startswith("="))
    return base64.b64decode(data, validate=True)


def armored(keyring: Keys) -> str:
    """Return the keys as text, in one block: equal keys result in equal text (RFC 4880, section 6).

    Raises:
        InvalidInput: as `binary`.
    """
    content = binary(keyring)
    lines = textwrap.wrap(base64.b64encode(content).decode(), 64)
    check = base64.b64encode(_crc24(content).to_bytes(3, "big")).decode()
    edge = "PGP PUBLIC KEY BLOCK-----"
    return "\n".join([f"-----BEGIN {edge}", "", *lines, f"={check}", f"-----END {edge}", ""])


def _crc24(content: bytes) -> int:
    """Return the checksum of armor (RFC 4880, section 6.1) of a content."""
    crc = 0xB704CE
    for byte in content:
        crc ^= byte << 16
        for _ in range(8):
            crc = crc << 1 ^ (0x1864CFB if crc & 0x800000 else 0)
    return crc


def fingerprints(keyring: Keys) -> list[str]:
    """Return fingerprints of the primary keys in a keyring: 40 hexadecimal digits each, in upper case.

    They are in the keyring's order. Subkeys, and keys of a version other than 4, are left out.

    Raises:
        InvalidInput: the keyring cannot be read, is malformed or cut off.
    """
    packets = _packets(binary(keyring))
    return [_fingerprint(body) for tag, body in packets if tag == PUBLIC_KEY and body[:1] == b"\x04"]


def other_contents(keyring: Keys, fingerprint: str) -> list[str]:
    """Return descriptions of a keyring's contents except the key with that fingerprint; empty if none.

    A description is the fingerprint of another version 4 key, `a key of version …`, or `a packet of tag …`.
    If the keyring lacks the key, all its contents are described. User IDs, signatures and subkeys belong to
    the key that they follow: gpgv accepts a subkey only with a binding signature of that key.

    Raises:
        InvalidInput: the keyring cannot be read, is malformed or cut off.
    """
    found: list[str] = []
    for tag, body in _packets(binary(keyring)):
        if tag == PUBLIC_KEY:
            found.append(_fingerprint(body) if body[:1] == b"\x04" else f"a key of version {body[:1].hex()}")
        elif tag not in PARTS or not found:
            found.append(f"a packet of tag {tag}")
    if fingerprint.upper() in found:
        found.remove(fingerprint.upper())
    return found


def _fingerprint(body: bytes) -> str:
    """Return the fingerprint of a version 4 public-key packet (RFC 4880, section 12.2).

    It is the SHA-1 in upper-case hexadecimal digits: a name, not a signature.
    """
    named = b"\x99" + len(body).to_bytes(2, "big") + body
    return hashlib.sha1(named, usedforsecurity=False).hexdigest().upper()


def _packets(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and body of each packet, in time of the content's length.

    Partial and indeterminate lengths (RFC 4880, sections 4.2.1 and 4.2.2.4) are for data, never for keys:
    readers that interpret them differently would see different keys.

    Raises:
        InvalidInput: the content is not a keyring, a packet is cut off or has no definite length, or there
            are more than `PACKETS`.
    """
    at = number = 0
    while at < len(content):
        number += 1
        if number > PACKETS:
            raise InvalidInput(
                f"a keyring of more than {PACKETS} packets", expected="the keys of a repository"
            )
        head = content[at]
        if not head & 0x80:
            raise InvalidInput("not an OpenPGP key", expected="a keyring, binary or armored")
        if head & 0x40:
            tag, (size, begin) = head & 0x3F, _new_length(content, at + 1)
        else:
            octets = (1, 2, 4, 0)[head & 3]
            tag, size, begin = head >> 2 & 0x0F, _number(content, at + 1, octets), at + 1 + octets
        if size is None or begin + size > len(content):
            raise InvalidInput("an OpenPGP key that is cut off", expected="a keyring, binary or armored")
        at = begin + size
        yield tag, content[begin:at]


def _number(content: bytes, at: int, octets: int) -> int | None:
    """Return the number in `octets` bytes from a place on; None if they are missing, or if `octets` is 0."""
    found = content[at : at + octets]
    return int.from_bytes(found, "big") if 0 < octets == len(found) else None


def _new_length(content: bytes, at: int) -> tuple[int | None, int]:
    """Return the length of a new-format packet, and the place of its body (RFC 4880, section 4.2.2).

    The length is None if it is missing or partial.

    Args:
        at: place of the length.
    """
    first = _number(content, at, 1)
    if first is None or 224 <= first < 255:
        return None, at
    if first < 192:
        return first, at + 1
    if first < 224:
        second = _number(content, at + 1, 1)
        return None if second is None else ((first - 192) << 8) + second + 192, at + 2
    return _number(content, at + 1, 4), at + 5
