"""Store of a lock's fleet; all its modules are signed if the lock states a certificate."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from gpuprov.apply.kernel_modules.store import Signer, Store
from gpuprov.errors import Refused
from gpuprov.model.fleet import read_fleet
from gpuprov.model.lock import Lock
from gpuprov.model.secure_boot import LockedSecureBoot
from gpuprov.signing.keys import signer


def store_of(lock: Lock, run: str = "") -> Store:
    """Return the fleet's part of the controller's store. The key is read only when a module is signed.

    Args:
        run: id of the run, for the journal of signatures.
    """
    stated = next((group.secure_boot for group in lock.groups.values() if group.secure_boot), None)
    sign = Signer(stated.fingerprint, partial(_sign, lock.fleet, stated)) if stated else None
    return Store(fleet=lock.fleet, signer=sign, run=run)


def _sign(fleet: Path | None, stated: LockedSecureBoot, module: bytes) -> bytes:
    """Return a module with the signature that the lock requires.

    Raises:
        Refused: the fleet of the lock has another certificate, or none.
        GpuprovError: the key cannot be used.
    """
    own = read_fleet(fleet).secure_boot if fleet and fleet.exists() else None
    if own and fleet:
        certificate, sign = signer(own, fleet.parent)
        if certificate.fingerprint == stated.fingerprint:
            return sign(module)
    raise Refused(
        f"the lock wants modules signed for the certificate of {stated.signer} ({stated.serial}), and the"
        f" fleet's file does not state that certificate in secure_boot",
        expected=str(fleet or "the fleet's file"),
        do="run gpuprov lock, or work on the controller that has the fleet's file and key",
    )
