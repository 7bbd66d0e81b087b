"""Temporary signing keys for building a mirror."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuprov.errors import GpuprovError
from gpuprov_lab.mirror.openpgp import Signer

OWNER = "gpuprov lab mirror <lab@invalid>"


class SigningKey:
    """A private key in a temporary folder; created and removed by `signing_key`.

    Attributes:
        home: the folder, removed with the key.
        public: the public key, armored.
        fingerprint: 40 hexadecimal digits.
    """

    def __init__(self, home: Path, options: Sequence[str] = (), expires: str = "never") -> None:
        """Generate a key without a passphrase in gpg's folder `home`.

        Args:
            options: gpg's own, for every call: `--faked-system-time` for keys of other days, `--digest-algo`.
            expires: `never`, or gpg's notation: `1d`.

        Raises:
            GpuprovError: gpg fails; also in all methods.
        """
        self.home, self._options = home, options
        self._gpg(["--passphrase", "", "--quick-generate-key", OWNER, "rsa2048", "sign", expires])
        self.public = self._gpg(["--armor", "--export"])
        listing = self._gpg(["--with-colons", "--list-keys"]).decode()
        self.fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr"))

    def clear_signed(self, text: bytes) -> bytes:
        """Return the text with its signature around it, as InRelease."""
        return self._gpg(["--clear-sign"], text)

    def detached(self, text: bytes) -> bytes:
        """Return an armored detached signature, as Release.gpg and repomd.xml.asc."""
        return self._gpg(["--armor", "--detach-sign"], text)

    def of_rpm(self, header: bytes) -> bytes:
        """Return the binary signature of an rpm's header, which contains the digest of its payload."""
        return self._signer.detached(header)

    @cached_property
    def _signer(self) -> Signer:
        return Signer(self._gpg(["--passphrase", "", "--export-secret-keys"]), self.fingerprint)

    def binary(self) -> bytes:
        """Return the public key as a keyring file, not armored."""
        return self._gpg(["--export"])

    def _gpg(self, arguments: Sequence[str], text: bytes = b"") -> bytes:
        """Run gpg with this key's home; return its stdout. Raise GpuprovError if it fails."""
        command = [
            "gpg",
            "--homedir",
            str(self.home),
            "--batch",
            "--quiet",
            "--no-tty",
            "--pinentry-mode",
            "loopback",
        ]
        done = subprocess.run(
            [*command, *self._options, *arguments], input=text, capture_output=True, timeout=60, check=False
        )
        if done.returncode:
            raise GpuprovError(f"gpg {arguments[-1]}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout


@contextmanager
def signing_key(options: Sequence[str] = (), expires: str = "never") -> Iterator[SigningKey]:
    """Yield a new key; its folder and gpg's agent are removed afterwards.

    Raises:
        GpuprovError: gpg is missing or fails.
    """
    with TemporaryDirectory(prefix="gpuprov-key-") as home:
        Path(home).chmod(0o700)
        try:
            yield SigningKey(Path(home), options, expires)
        except FileNotFoundError as error:
            raise GpuprovError("gpg is not installed here", do="install gnupg") from error
        finally:
            subprocess.run(
                ["gpgconf", "--homedir", home, "--kill", "gpg-agent"], capture_output=True, check=False
            )
