"""The certificate of a site's module signatures: it is enrolled on nodes, and signatures name it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprov.untrusted.stated import read_bounded, stated_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

LEAST_BITS = 2048
"""Minimum size of the RSA key in bits."""
HOW_TO = "docs/guides/secure-boot.md says how to make one with openssl"
"""Remedy in messages about a certificate."""


@dataclass(frozen=True)
class Certificate:
    """An X.509 certificate of an RSA key.

    Attributes:
        der: the certificate in DER, the form that firmware, shim and mokutil accept.
        issuer: the issuer's distinguished name, in DER.
        signer: the issuer's common name, which modinfo(8) calls `signer`; empty if it has none.
        number: the serial number.
        public_key: the certificate's key, which verifies signatures.
    """

    der: bytes
    issuer: bytes
    signer: str
    number: int
    public_key: RSAPublicKey

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the certificate (DER) in lower-case hexadecimal digits, without colons."""
        return hashlib.sha256(self.der).hexdigest()

    @property
    def serial(self) -> str:
        """The serial number as modinfo(8) prints it: `1F:2E:3D`."""
        return serial_text(self.number)


def serial_text(number: int) -> str:
    """Return the bytes of a serial number as `1F:2E:3D`, without DER's leading zero byte for the sign.

    0 is `00`.
    """
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big").hex(":").upper()


def read_certificate(path: Path) -> Certificate:
    """Read a certificate from a file, in PEM or DER.

    Raises:
        InvalidInput: the file cannot be read, is not a certificate, or its key is not RSA with at least
            `LEAST_BITS` bits.
    """
    expected = f"an X.509 certificate of an RSA key, {LEAST_BITS} bits"
    with stated_file(path, expected=expected, do=HOW_TO):
        return parse_certificate(read_bounded(path))


def parse_certificate(content: bytes) -> Certificate:
    """Return the certificate in a content, which is PEM or DER; the first one if PEM has several.

    The validity period is not checked.

    Raises:
        Exception: the content is not an X.509 certificate of an RSA key with at least `LEAST_BITS` bits;
            cryptography has several for it.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import Encoding

    pem = b"-----BEGIN CERTIFICATE-----" in content
    read = x509.load_pem_x509_certificate if pem else x509.load_der_x509_certificate
    certificate = read(content)
    public = certificate.public_key()
    if not isinstance(public, RSAPublicKey) or public.key_size < LEAST_BITS:
        raise ValueError("its key is of another type or size")
    if certificate.serial_number < 0:
        raise ValueError("its serial number is below 0")
    names = certificate.issuer.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return Certificate(
        der=certificate.public_bytes(Encoding.DER),
        issuer=certificate.issuer.public_bytes(),
        signer=str(names[0].value) if names else "",
        number=certificate.serial_number,
        public_key=public,
    )
