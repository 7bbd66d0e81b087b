"""Private keys in files that another person may have written: OpenSSH's format, PEM or DER.

cryptography checks that the numbers of an RSA or DH key are primes while it loads the key. That takes minutes
for a file of 15 KB, and nothing else runs meanwhile. Numbers that do not fit the modulus take as long at a
login.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

    PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey

LARGEST = 256 << 10
"""Maximum size in bytes of a file with a key; one of `BITS` bits has 13,000."""
BITS = 16384
"""Maximum length of an RSA key in bits, as in OpenSSH."""
UNKNOWN = "not a private key of Ed25519, EC or RSA"
_LENGTH = rb"(?:[\0-\x7f]|\x81.|\x82..)"
_ALGORITHMS = rb"\x2b\x65\x70|\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01|\x2a\x86\x48\xce\x3d\x02\x01"
KNOWN = re.compile(
    rb"\x30" + _LENGTH + rb"(?:\x02\x01\0\x02|\x02\x01\x01\x04"
    rb"|\x02\x01[\0\x01]\x30[\0-\x7f]\x06.(?:" + _ALGORITHMS + rb"))",
    re.DOTALL,
)
"""Start of the DER of a key of RSA (RFC 8017) or EC (RFC 5915), or of Ed25519, RSA or EC (RFC 5958)."""

ENCRYPTED = re.compile(rb"\x30" + _LENGTH + rb"\x30", re.DOTALL)
"""Start of the DER of an encrypted key (RFC 5958)."""


class NeedsPassphrase(ValueError):
    """A private key that is encrypted."""


def load_private_key(content: bytes) -> PrivateKey:
    """Return the private key in the content of a file.

    Raises:
        NeedsPassphrase: it is encrypted.
        ValueError: it is no key of Ed25519, EC or RSA, or one of RSA with more than `BITS` bits, or with
            numbers that do not belong together.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

    try:
        key = _unchecked(content)
    except TypeError:
        raise NeedsPassphrase("it has a passphrase") from None
    except (ArithmeticError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from None
    if isinstance(key, RSAPrivateKey):
        _check(key)
    elif not isinstance(key, (EllipticCurvePrivateKey, Ed25519PrivateKey)):
        raise ValueError(UNKNOWN)  # noqa: TRY004
    return key


def _unchecked(content: bytes) -> PrivateKeyTypes:
    """Return the private key in a file's content, without a check of its numbers.

    Raises:
        TypeError: it is encrypted.
        ValueError, ArithmeticError, UnsupportedAlgorithm: it is no key that is known here.
    """
    from cryptography.hazmat.primitives.serialization import load_der_private_key, load_ssh_private_key

    if len(content) > LARGEST:
        raise ValueError(f"larger than {LARGEST} bytes")
    _, begins, rest = content.partition(b"-----BEGIN ")
    label, _, rest = rest.partition(b"-----")
    if label == b"OPENSSH PRIVATE KEY":
        return load_ssh_private_key(content, None, unsafe_skip_rsa_key_validation=True)
    body = rest.partition(b"-----END ")[0]
    if b"Proc-Type: 4,ENCRYPTED" in body:
        raise TypeError
    # Decoded here: what is loaded is what was looked at.
    der = base64.b64decode(body) if begins else content
    if ENCRYPTED.match(der):
        raise TypeError
    if not KNOWN.match(der):
        raise ValueError(UNKNOWN)
    return load_der_private_key(der, None, unsafe_skip_rsa_key_validation=True)


def _check(key: RSAPrivateKey) -> None:
    """Check the sizes of an RSA key's numbers; raise ValueError if one would take much time.

    Whether they are primes is not checked: with others a signature is wrong, and is refused.
    """
    if key.key_size > BITS:
        raise ValueError(f"an RSA key of {key.key_size} bits; expected at most {BITS}")
    of = key.private_numbers()
    n, e = of.public_numbers.n, of.public_numbers.e
    belong = of.p % 2 and of.q % 2 and of.p * of.q == n
    if not belong or not all(0 < each < n for each in (e, of.d, of.dmp1, of.dmq1, of.iqmp)):
        raise ValueError("an RSA key whose numbers do not belong together")
