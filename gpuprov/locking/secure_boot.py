"""What the lock says of Secure Boot: the certificate, and never where its key is."""

from __future__ import annotations

from pathlib import Path

from gpuprov.errors import Refused
from gpuprov.model.lock import Driver
from gpuprov.model.secure_boot import LockedSecureBoot, SecureBoot
from gpuprov.signing.certificate import read_certificate


def locked_secure_boot(stated: SecureBoot | None, folder: Path) -> LockedSecureBoot | None:
    """The fleet's certificate.

    Args:
        folder: that of fleet.yml, from which its paths count.

    Raises:
        InvalidInput: there is no such certificate.
    """
    if stated is None:
        return None
    certificate = read_certificate(folder / stated.certificate)
    return LockedSecureBoot(
        fingerprint=certificate.fingerprint, signer=certificate.signer, serial=certificate.serial
    )


def check_signed(group: str, stated: LockedSecureBoot | None, driver: Driver) -> None:
    """Refuse modules that nobody with the fleet's key could sign.

    Raises:
        Refused: DKMS compiles them on each node, where the key must not be.
    """
    if stated and driver.compiled and not driver.shared:
        raise Refused(
            f"{group}: secure_boot is stated, and each node compiles its own module,"
            " which the fleet's key cannot sign there",
            expected="modules that are compiled once and signed here, or by the distribution",
            do="stack: {module_build: once}, or precompiled with Ubuntu's modules",
        )
