"""The certificate that a site's modules are signed for: nodes have it enrolled, signatures name it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprov.errors import InvalidInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

LEAST_BITS = 2048
HOW_TO = "docs/guides/secure-boot.md says how to make one with openssl"


@dataclass(frozen=True)
class Certificate:
    """An X.509 certificate of an RSA key.

    Attributes:
        der: as firmware, shim and mokutil take it.
        issuer: the issuer's distinguished name, in DER.
        signer: the issuer's common name, which is what modinfo(8) calls `signer`.
        number: the serial number.
    """

    der: bytes
    issuer: bytes
    signer: str
    number: int
    public_key: RSAPublicKey

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of it, as `openssl x509 -fingerprint -sha256` counts."""
        return hashlib.sha256(self.der).hexdigest()

    @property
    def serial(self) -> str:
        """The serial number as modinfo(8) writes it: `1F:2E:3D`."""
        return serial_text(self.number)


def serial_text(number: int) -> str:
    """`1F:2E:3D`: the bytes of the number, without the zero that only says that it is not negative."""
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big").hex(":").upper()


def read_certificate(path: Path) -> Certificate:
    """Read a certificate, in PEM or DER.

    Raises:
        InvalidInput: there is none, or not one that kernels and shim take.
    """
    try:
        return parse_certificate(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}", expected="a certificate", do=HOW_TO) from None
    except ValueError as error:
        raise InvalidInput(
            f"{path}: {error}", expected=f"an X.509 certificate of an RSA key, {LEAST_BITS} bits", do=HOW_TO
        ) from None


def parse_certificate(content: bytes) -> Certificate:
    """The same for the bytes of one.

    Raises:
        ValueError: they are none.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import Encoding

    pem = b"-----BEGIN CERTIFICATE-----" in content
    read = x509.load_pem_x509_certificate if pem else x509.load_der_x509_certificate
    certificate = read(content)
    public = certificate.public_key()
    if not isinstance(public, RSAPublicKey) or public.key_size < LEAST_BITS:
        raise ValueError("its key is not of that kind")
    names = certificate.issuer.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return Certificate(
        der=certificate.public_bytes(Encoding.DER),
        issuer=certificate.issuer.public_bytes(),
        signer=str(names[0].value) if names else "",
        number=certificate.serial_number,
        public_key=public,
    )
