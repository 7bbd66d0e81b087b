"""Model of a fleet's Secure Boot: the certificate, and its key."""

from __future__ import annotations

from pydantic import Field

from gpuprov.model.documents import Strict


class KeyCommand(Strict):
    """A signing command on the controller, for a key that only this command can use."""

    command: str = Field(
        min_length=1,
        description="command that gets a SHA-256 digest (32 bytes) on stdin and writes its RSA signature"
        " (PKCS #1 v1.5) to stdout",
    )


class SecureBoot(Strict):
    """Certificate and key that sign kernel modules. The key is neither in the lock nor on nodes."""

    certificate: str = Field(description="file of the X.509 certificate that nodes enroll, in PEM or DER")
    key: str | KeyCommand = Field(
        description="file of its private key, the URI of a key in a PKCS #11 token, or a command that signs"
    )


class LockedSecureBoot(Strict):
    """The certificate that nodes must have enrolled, and its names in the signature of every module.

    `fingerprint` is the certificate's SHA-256; `signer` and `serial` are values of a signature in modinfo(8).
    """

    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    signer: str
    serial: str = Field(pattern=r"^[0-9A-F]{2}(:[0-9A-F]{2})*$")

    @property
    def signature(self) -> str:
        """Signer and serial number in a module's signature."""
        return f"{self.signer} {self.serial}"
