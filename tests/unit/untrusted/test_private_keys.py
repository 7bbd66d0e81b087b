"""Private keys of another person's repository: the usual kinds are read, costly ones are refused at once."""

from __future__ import annotations

import base64
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import paramiko
import pytest

from gpuprov.errors import InvalidInput
from gpuprov.signing import keys
from gpuprov.ssh import credentials
from gpuprov.untrusted.private_keys import NeedsPassphrase, load_private_key

MERSENNE = (2**9941 - 1, 2**9689 - 1)
"""Known primes: an RSA key of 19,630 bits, of which a check takes minutes."""
RSA = bytes.fromhex("300d06092a864886f70d0101010500")


def der(kind: int, content: bytes) -> bytes:
    """Return a value of ASN.1 in DER."""
    size = len(content).to_bytes(3, "big").lstrip(b"\0") or b"\0"
    return bytes([kind, *([0x80 | len(size)] if len(content) > 127 else []), *size]) + content


def whole(number: int) -> bytes:
    """Return an integer in DER."""
    return der(2, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def rsa(first: int, second: int, **other: int) -> SimpleNamespace:
    """Return the numbers of an RSA key with two primes; `other` replaces some."""
    p, q = first, second
    e, n = 65537, p * q
    d = pow(e, -1, (p - 1) * (q - 1))
    own = {"n": n, "e": e, "d": d, "p": p, "q": q, "dmp1": d % (p - 1), "dmq1": d % (q - 1)}
    return SimpleNamespace(**{**own, "iqmp": pow(q, -1, p), **other})


def pkcs1(key: SimpleNamespace) -> bytes:
    """Return an RSA key in the format of RFC 8017."""
    numbers = (key.n, key.e, key.d, key.p, key.q, key.dmp1, key.dmq1, key.iqmp)
    return der(0x30, whole(0) + b"".join(map(whole, numbers)))


def pem(label: str, content: bytes) -> bytes:
    """Return content as PEM."""
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (
        label.encode(),
        base64.encodebytes(content),
        label.encode(),
    )


def openssh(key: SimpleNamespace) -> bytes:
    """Return an RSA key in OpenSSH's format (PROTOCOL.key)."""

    def text(content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + content

    def number(value: int) -> bytes:
        return text(value.to_bytes(value.bit_length() // 8 + 1, "big"))

    kind = text(b"ssh-rsa")
    own = bytes(8) + kind + b"".join(map(number, (key.n, key.e, key.d, key.iqmp, key.p, key.q))) + text(b"")
    own += bytes(range(1, 1 + -len(own) % 8))
    public = text(kind + number(key.e) + number(key.n))
    head = b"openssh-key-v1\0" + text(b"none") + text(b"none") + text(b"") + (1).to_bytes(4, "big")
    return pem("OPENSSH PRIVATE KEY", head + public + text(own))


LARGE = rsa(*MERSENNE)
FORMATS = {
    "PKCS 1": pem("RSA PRIVATE KEY", pkcs1(LARGE)),
    "PKCS 8": pem("PRIVATE KEY", der(0x30, whole(0) + RSA + der(4, pkcs1(LARGE)))),
    "DER": pkcs1(LARGE),
    "OpenSSH": openssh(LARGE),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("form", FORMATS)
def test_a_key_of_many_bits_is_refused_at_once(form: str) -> None:
    begun = time.monotonic()
    with pytest.raises(ValueError, match="RSA key of 19630 bits; expected at most 16384"):
        load_private_key(FORMATS[form])
    assert time.monotonic() - begun < 3


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["06092a864886f70d010301", "06072a8648ce3e0201"])
def test_a_key_of_diffie_hellman_is_not_loaded(kind: str) -> None:
    """Refuse what is checked for primes as well, and no login or signature uses."""
    group = der(0x30, bytes.fromhex(kind) + der(0x30, whole(MERSENNE[0]) + whole(2) + whole(2**61 - 1)))
    key = der(0x30, whole(0) + group + der(4, whole(12345)))
    for content in (key, pem("PRIVATE KEY", key), pem("DH PRIVATE KEY", key)):
        with pytest.raises(ValueError, match="not a private key of Ed25519, EC or RSA"):
            load_private_key(content)


@pytest.mark.parametrize(
    "other",
    [
        {"d": 2**200_000 - 1},
        {"p": MERSENNE[0], "q": MERSENNE[1]},
        {"dmp1": 2**200_000 - 1},
        {"iqmp": 2**200_000 - 1},
        {"e": 2**200_000 - 1},
        {"n": 2**2048, "p": 2**1000, "q": 2**1048},
    ],
    ids=lambda other: "-".join(other),
)
def test_numbers_that_do_not_fit_the_modulus_are_refused(other: dict[str, int]) -> None:
    """Refuse a key of 1,886 bits by its modulus, with which a login would compute with 200,000."""
    with pytest.raises(ValueError, match="numbers do not belong together"):
        load_private_key(pkcs1(rsa(2**1279 - 1, 2**607 - 1, **other)))


@pytest.mark.parametrize("form", ["RFC4716", "PEM", "PKCS8"])
@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_usual_keys_are_read(kind: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-m", form, "-N", "", "-f", path], check=True)
    key = credentials.private_key(str(path))
    public = (tmp_path / "key.pub").read_text().split()
    assert [key.get_name(), key.get_base64()] == public[:2]
    signature = key.sign_ssh_data(b"data", "rsa-sha2-512" if kind == "rsa" else None)
    signature.rewind()
    verifier = paramiko.PKey.from_type_string(public[0], base64.b64decode(public[1]))
    assert verifier.verify_ssh_sig(b"data", signature)


@pytest.mark.parametrize("form", ["RFC4716", "PEM", "PKCS8"])
def test_a_key_with_a_passphrase_is_named_as_such(form: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-m", form, "-N", "secret", "-f", path], check=True)
    with pytest.raises(NeedsPassphrase):
        load_private_key(path.read_bytes())
    with pytest.raises(InvalidInput, match="asks for a passphrase"):
        credentials.private_key(str(path))


@pytest.mark.timeout(20)
def test_logins_and_signatures_read_keys_this_way(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(FORMATS["PKCS 1"])
    path.chmod(0o600)
    with pytest.raises(InvalidInput, match="key cannot be read: an RSA key of 19630 bits"):
        credentials.private_key(str(path))
    with pytest.raises(InvalidInput, match="an RSA key of 19630 bits"):
        keys.key("key", tmp_path)
