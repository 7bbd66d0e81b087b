"""OpenPGP signatures made in this process: gpg takes 10 ms for each of the hundreds of packages of a mirror.

Packets: RFC 4880, sections 4.2 (headers), 5.2.3 (signatures of version 4) and 5.5.3 (secret keys).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateNumbers,
    RSAPublicNumbers,
    rsa_crt_dmp1,
    rsa_crt_dmq1,
)
from cryptography.hazmat.primitives.hashes import SHA256

RSA, SHA256_ID = 1, 8
BINARY_DOCUMENT = 0
CREATED, ISSUER, ISSUER_FINGERPRINT = 2, 16, 33
"""Types of subpackets of a signature."""


class Signer:
    """An unprotected RSA key, as `gpg --export-secret-keys` prints it."""

    def __init__(self, exported: bytes, fingerprint: str) -> None:
        """Read the primary key, which is the first packet.

        Args:
            exported: not armored; the key has no passphrase.
            fingerprint: 40 hexadecimal digits.
        """
        body = _first_body(exported)
        self._created, self._fingerprint = body[1:5], bytes.fromhex(fingerprint)
        n, e, rest = _public(body[6:])
        d, p, q, _u = _numbers(rest[1:])  # after the octet that says that the key is not encrypted
        numbers = RSAPrivateNumbers(
            p, q, d, rsa_crt_dmp1(d, p), rsa_crt_dmq1(d, q), pow(q, -1, p), RSAPublicNumbers(e, n)
        )
        self._key = numbers.private_key()

    def detached(self, content: bytes) -> bytes:
        """Return a binary detached signature. Its time is the key's: the same content has the same bytes."""
        hashed = _subpacket(CREATED, self._created)
        hashed += _subpacket(ISSUER_FINGERPRINT, b"\x04" + self._fingerprint)
        head = bytes([4, BINARY_DOCUMENT, RSA, SHA256_ID]) + len(hashed).to_bytes(2, "big") + hashed
        signed = content + head + b"\x04\xff" + len(head).to_bytes(4, "big")
        issuer = _subpacket(ISSUER, self._fingerprint[-8:])
        value = self._key.sign(signed, PKCS1v15(), SHA256())
        number = int.from_bytes(value, "big")
        bits = number.bit_length()
        body = b"".join(
            (
                *(head, len(issuer).to_bytes(2, "big"), issuer, hashlib.sha256(signed).digest()[:2]),
                *(bits.to_bytes(2, "big"), number.to_bytes((bits + 7) // 8, "big")),
            )
        )
        return b"\x89" + len(body).to_bytes(2, "big") + body


def _first_body(packets: bytes) -> bytes:
    """Return the body of the first packet, whose header has the old format, as gpg writes it."""
    width = 1 << (packets[0] & 3)
    size = int.from_bytes(packets[1 : 1 + width], "big")
    return packets[1 + width : 1 + width + size]


def _public(content: bytes) -> tuple[int, int, bytes]:
    """Return modulus and exponent of an RSA key, and what follows them."""
    n, rest = _number(content)
    e, rest = _number(rest)
    return n, e, rest


def _numbers(content: bytes) -> Iterator[int]:
    """Yield the four numbers of the secret part: d, p, q, and the inverse of p modulo q."""
    for _ in range(4):
        number, content = _number(content)
        yield number


def _number(content: bytes) -> tuple[int, bytes]:
    """Return a multiprecision integer, and what follows it."""
    end = 2 + (int.from_bytes(content[:2], "big") + 7) // 8
    return int.from_bytes(content[2:end], "big"), content[end:]


def _subpacket(kind: int, content: bytes) -> bytes:
    """Return a subpacket of a signature, shorter than 192 octets."""
    return bytes([len(content) + 1, kind]) + content
