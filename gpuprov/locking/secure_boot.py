"""The lock's record of Secure Boot: the certificate, without the path of its key."""

from __future__ import annotations

from pathlib import Path

from gpuprov.errors import Refused
from gpuprov.model.lock import Driver
from gpuprov.model.secure_boot import LockedSecureBoot, SecureBoot
from gpuprov.signing.certificate import read_certificate


def locked_secure_boot(stated: SecureBoot | None, folder: Path) -> LockedSecureBoot | None:
    """Return the fleet's certificate as the lock records it, or None if the fleet states none.

    Args:
        folder: of fleet.yml; its paths are relative to it.

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
    """Check that the modules can be signed with the fleet's key, if it states one.

    Raises:
        Refused: DKMS compiles them on each node, where the key must not be.
    """
    if stated and driver.compiled and not driver.shared:
        raise Refused(
            f"{group}: secure_boot is stated, and each node compiles its own module,"
            " which the fleet's key cannot sign there",
            expected="modules that are compiled once and signed here, or by the distribution",
            do="stack: {builder: NODE}, or module_build: precompiled with Ubuntu's modules",
        )
