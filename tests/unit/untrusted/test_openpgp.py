"""Packets of OpenPGP keys: lengths that readers could interpret differently are refused."""

from __future__ import annotations

import pytest

from gpuprov.errors import InvalidInput
from gpuprov.locking.repository.fetch import UNSTATED
from gpuprov.untrusted.openpgp import LARGEST, PACKETS, binary, fingerprints
from tests.unit.hostile.timing import seconds_of

NEW_FORMAT_KEY = bytes([0xC0 | 6])
OLD_FORMAT_KEY = 0x80 | 6 << 2


@pytest.mark.parametrize("first", [224, 225, 254])
def test_a_partial_length_is_refused(first: int) -> None:
    """Refuse the first part of a packet (RFC 4880, section 4.2.2.4), also if it could be a whole packet."""
    as_four_octets = b"\x00\x00\x00\x06\x04\x00\x00\x00\x00\x01"
    with pytest.raises(InvalidInput, match="cut off"):
        fingerprints(NEW_FORMAT_KEY + bytes([first]) + as_four_octets)


def test_an_indefinite_length_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cut off"):
        fingerprints(bytes([OLD_FORMAT_KEY | 3]) + b"\x04" * 64)


@pytest.mark.parametrize("length", [b"\x06", b"\xff\x00\x00\x00\x06"], ids=["one octet", "five octets"])
def test_a_key_has_one_fingerprint_however_its_length_is_written(length: bytes) -> None:
    body = b"\x04\x00\x00\x00\x00\x01"
    assert fingerprints(NEW_FORMAT_KEY + length + body) == fingerprints(bytes([OLD_FORMAT_KEY, 6]) + body)


@pytest.mark.parametrize("packet", [bytes([0xC0 | 2, 0]), bytes([0x80 | 2 << 2, 0])], ids=["new", "old"])
@pytest.mark.parametrize(("size", "seen"), [(UNSTATED, "larger than"), (LARGEST, "more than 16384 packets")])
def test_many_packets_take_little_time(packet: bytes, size: int, seen: str) -> None:
    """Read files that a mirror can serve as its key, before anything in them is verified."""
    content = packet * (size // 2)
    assert seconds_of(lambda: fingerprints(content)) < 1
    with pytest.raises(InvalidInput, match=seen):
        fingerprints(content)


def test_packets_take_time_of_the_length_of_a_keyring() -> None:
    """Read as many as are allowed, the first of them large."""
    first = LARGEST - 2 * PACKETS - 5
    content = bytes([0x80 | 2 << 2 | 2]) + first.to_bytes(4, "big") + bytes(first)
    assert seconds_of(lambda: fingerprints(content + bytes([0xC0 | 2, 0]) * (PACKETS - 1))) < 1


@pytest.mark.parametrize(
    "text",
    [
        b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQINBGA\n",
        b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n-----END PGP PUBLIC KEY BLOCK-----\n",
    ],
    ids=["cut off", "empty"],
)
def test_armor_without_a_complete_block_is_no_keyring(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="no complete armored block"):
        binary(text)
