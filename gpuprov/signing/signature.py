"""Signatures of kernel modules: CMS without certificates, appended (kernel documentation, module-signing).

The kernel recognizes a signed module by its last bytes: a `struct module_signature` (header file of that
name) and a line of text. The signature precedes them, and the module precedes the signature.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass

from gpuprov.errors import GpuprovError
from gpuprov.signing import der
from gpuprov.signing.certificate import Certificate, serial_text

MAGIC = b"~Module signature appended~\n"
"""The last bytes of a signed module."""
TRAILER = struct.Struct(">BBBBB3xI")
"""Fields: algo, hash, id_type, signer_len, key_id_len, padding, sig_len."""
PKCS7 = 2
"""id_type PKEY_ID_PKCS7; of the other fields only sig_len is used."""
TAIL_BYTES = 16 << 10
"""Number of bytes at the end of a file that contain its signature."""

# RFC 5652, RFC 8017, RFC 4055
SIGNED_DATA = bytes.fromhex("2a864886f70d010702")
DATA = bytes.fromhex("2a864886f70d010701")
SHA256 = bytes.fromhex("608648016503040201")
RSA = bytes.fromhex("2a864886f70d010101")
COMMON_NAME = bytes.fromhex("550403")
"""Object identifiers in DER, of signed data, data, SHA-256, RSA encryption and common name in this order."""

Sign = Callable[[bytes], bytes]
"""Function from a SHA-256 digest to its PKCS #1 v1.5 signature with the private key."""


@dataclass(frozen=True)
class Signature:
    """The certificate that a module's signature names.

    Attributes:
        signer: common name of the certificate's issuer; empty if it has none.
        serial: serial number of the certificate, or its subject's key identifier: `1F:2E:3D`.
    """

    signer: str
    serial: str

    def __str__(self) -> str:
        return f"{self.signer} {self.serial}"


def signed(content: bytes, certificate: Certificate, sign: Sign) -> bytes:
    """Return the module with one signature, that of the certificate; existing signatures are removed.

    Args:
        content: a module, not compressed.
        sign: called once, with the SHA-256 digest of the module without signatures.

    Raises:
        GpuprovError: the key does not belong to the certificate, or `sign` fails.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

    bare = without_signature(content)
    digest = hashlib.sha256(bare).digest()
    value = sign(digest)
    try:
        certificate.public_key.verify(value, digest, PKCS1v15(), Prehashed(hashes.SHA256()))
    except InvalidSignature:
        raise GpuprovError(
            f"the signature by secure_boot.key does not verify with the certificate of"
            f" {certificate.signer} ({certificate.serial})",
            expected="the key of that certificate, and an RSA signature (PKCS #1 v1.5) of a SHA-256 digest",
            do="state the certificate and the key of one pair in secure_boot of fleet.yml",
        ) from None
    cms = _cms(certificate, value)
    return bare + cms + TRAILER.pack(0, 0, PKCS7, 0, 0, len(cms)) + MAGIC


def _cms(certificate: Certificate, value: bytes) -> bytes:
    """Return CMS SignedData of a signature, for detached content, without attributes and certificates.

    RFC 5652, section 5. The signer is named by issuer and serial number.
    """
    by_sha256 = der.element(der.SEQUENCE, der.element(der.OBJECT_ID, SHA256))
    by_rsa = der.element(der.SEQUENCE, der.element(der.OBJECT_ID, RSA), der.element(der.NULL))
    name = der.element(der.SEQUENCE, certificate.issuer, der.integer(certificate.number))
    signer = der.element(
        der.SEQUENCE, der.integer(1), name, by_sha256, by_rsa, der.element(der.OCTETS, value)
    )
    data = der.element(
        der.SEQUENCE,
        der.integer(1),
        der.element(der.SET, by_sha256),
        der.element(der.SEQUENCE, der.element(der.OBJECT_ID, DATA)),
        der.element(der.SET, signer),
    )
    return der.element(der.SEQUENCE, der.element(der.OBJECT_ID, SIGNED_DATA), der.element(der.EXPLICIT, data))


def without_signature(content: bytes) -> bytes:
    """Return the module as it was compiled, without any appended signatures; unchanged if it has none."""
    end = len(content)
    while size := signature_bytes(content, end):
        end -= size
    return content[:end]


def signature_bytes(content: bytes, end: int | None = None) -> int:
    """Return the size in bytes of the signature at the end of a module, with its trailer.

    0 if the module is not signed, or its trailer states more bytes than there are.

    Args:
        end: offset of the module's end, if it is not the end of `content`.
    """
    end, ending = len(content) if end is None else end, TRAILER.size + len(MAGIC)
    if end < ending or not content.endswith(MAGIC, end - len(MAGIC), end):
        return 0
    *_, size = TRAILER.unpack_from(content, end - ending)
    whole = int(size) + ending
    return whole if whole <= end else 0


def read_signature(tail: bytes) -> Signature | None:
    """Return the certificate that a module's signature names.

    Args:
        tail: the module, or its last `TAIL_BYTES` bytes.

    Returns:
        None if the module is not signed, or its signature cannot be read.
    """
    size = signature_bytes(tail)
    if not size:
        return None
    try:
        return _signer(tail[len(tail) - size : len(tail) - TRAILER.size - len(MAGIC)])
    except (ValueError, StopIteration):
        return None


def _signer(cms: bytes) -> Signature:
    """Return the certificate that the first SignerInfo of a CMS names.

    Raises:
        ValueError, StopIteration: it is not such a signature.
    """
    _, announced = der.items(next(der.items(cms)).content)
    data = next(der.items(announced.content))
    *_, signers = der.items(data.content)
    _, name, *_ = der.items(next(der.items(signers.content)).content)
    if name.tag != der.SEQUENCE:  # [0] subjectKeyIdentifier
        return Signature("", name.content.hex(":").upper())
    issuer, number = der.items(name.content)
    return Signature(_common_name(issuer.content), serial_text(int.from_bytes(number.content, "big")))


def _common_name(issuer: bytes) -> str:
    """Return the common name in an issuer's DER content; empty if it has none."""
    for part in der.items(issuer):
        for pair in der.items(part.content):
            kind, value = der.items(pair.content)
            if kind.content == COMMON_NAME:
                return value.content.decode("utf-8", "replace")
    return ""
