"""Keys that sign: a key file on the controller, a key in a PKCS #11 token, or a command.

The key is used only on the controller, and is never copied.
"""

from __future__ import annotations

import shlex
import stat
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from gpuprov.errors import GpuprovError, InvalidInput
from gpuprov.model.secure_boot import KeyCommand, SecureBoot
from gpuprov.signing.certificate import Certificate, read_certificate
from gpuprov.signing.signature import Sign, signed
from gpuprov.untrusted.private_keys import LARGEST, NeedsPassphrase, load_private_key
from gpuprov.untrusted.stated import read_bounded

PKCS11 = "pkcs11:"
"""Start of the URI of a key in a token (RFC 7512)."""
TIMEOUT_S = 120
"""Seconds for a token or a command to sign; the user may have to touch the token."""


def signer(stated: SecureBoot, folder: Path) -> tuple[Certificate, Callable[[bytes], bytes]]:
    """Return the certificate, and a function from a module's content to the module with its signature.

    The function raises GpuprovError if the key cannot sign, or does not belong to the certificate.

    Args:
        stated: the setting `secure_boot` of fleet.yml.
        folder: the folder of fleet.yml, to which paths are relative.

    Raises:
        InvalidInput: the certificate or the key does not exist, or cannot be used.
    """
    certificate = read_certificate(folder / stated.certificate)
    return certificate, partial(_signed, certificate=certificate, sign=key(stated.key, folder))


def _signed(content: bytes, certificate: Certificate, sign: Sign) -> bytes:
    """Return a module with a signature; `signed` with arguments that `partial` can bind by name."""
    return signed(content, certificate, sign)


def key(stated: str | KeyCommand, folder: Path) -> Sign:
    """Return the function that signs digests with a key: of a file, of a PKCS #11 token, or by a command.

    A command is run by `sh -c`; it gets the digest on standard input and writes the signature. A token or a
    command is used only when the function is called.

    Args:
        stated: path, `pkcs11:` URI or command, as in `secure_boot.key`.
        folder: the folder to which a path is relative.

    Raises:
        InvalidInput: a key file is missing, is not an RSA key, has a passphrase, or is accessible to other
            users; or a URI contains the PIN.
    """
    if isinstance(stated, KeyCommand):
        return partial(_by_program, ["sh", "-c", stated.command], stated.command)
    if stated.startswith(PKCS11):
        if "pin-value=" in stated:
            raise InvalidInput(
                "secure_boot.key has the PIN of the token in its URI, which every reader of fleet.yml sees",
                expected="a PIN in a file that only you can read, or none",
                do="write pin-source=FILE instead of pin-value=…",
            )
        return partial(_by_token, stated)
    return _of_file(folder / stated)


def _of_file(path: Path) -> Sign:
    """Return the function that signs digests with the private key in a file.

    Raises:
        InvalidInput: the file is missing, accessible to other users, or not an RSA key without a passphrase.
    """
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

    where = f"secure_boot.key {path}"
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidInput(
                f"{where} is readable by others",
                expected="readable only by its owner",
                do=f"chmod 600 {shlex.quote(str(path))}",
            )
        private = load_private_key(read_bounded(path, LARGEST))
    except OSError as error:
        raise InvalidInput(f"{where}: {error.strerror}", expected="the certificate's key") from None
    except NeedsPassphrase:
        raise InvalidInput(
            f"{where} has a passphrase, which cannot be typed here",
            expected="a key file without one, a token or a command",
            do="secure_boot.key: pkcs11:…, or {command: …} that asks an agent",
        ) from None
    except ValueError as error:
        seen = f"{where} cannot be read as a private key: {error}"
        raise InvalidInput(seen, expected="PEM or DER") from None
    if not isinstance(private, RSAPrivateKey):
        raise InvalidInput(f"{where} is not an RSA key", expected="the key of an RSA certificate")
    return lambda digest: private.sign(digest, PKCS1v15(), Prehashed(hashes.SHA256()))


def _by_token(uri: str, digest: bytes) -> bytes:
    """Sign with OpenSSL's engine for PKCS #11 (Debian: libengine-pkcs11-openssl); return the signature.

    Raises:
        GpuprovError: as `_by_program`.
    """
    words = ["openssl", "pkeyutl", "-sign", "-engine", "pkcs11", "-keyform", "engine", "-inkey", uri]
    return _by_program([*words, "-pkeyopt", "digest:sha256"], "openssl and the token", digest)


def _by_program(words: Sequence[str], name: str, digest: bytes) -> bytes:
    """Return the standard output of a program, the signature, that gets the digest on standard input.

    Args:
        words: the program and its arguments.
        name: its name in messages.

    Raises:
        GpuprovError: it cannot be run, fails, or does not end within `TIMEOUT_S`.
    """
    try:
        done = subprocess.run(words, input=digest, capture_output=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuprovError(f"secure_boot.key: {name}: {error}") from None
    if done.returncode:
        result = " ".join(done.stderr.decode("utf-8", "replace").split())[-300:]
        raise GpuprovError(f"secure_boot.key: {name} exited with {done.returncode}: {result}")
    return done.stdout
