"""The store of a lock: where the fleet states a certificate, every module in it has its signature."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from gpuprov.apply.modules.build import packed, unpacked
from gpuprov.apply.modules.store import Signer, Store
from gpuprov.errors import Refused
from gpuprov.model.fleet import read_fleet
from gpuprov.model.lock import Lock
from gpuprov.model.secure_boot import LockedSecureBoot
from gpuprov.signing.keys import signer

LOCK = ".lock.yml"


def store_of(lock: Lock) -> Store:
    """The controller's store, as the lock's nodes need it. The key is looked for when something is signed."""
    stated = next((group.secure_boot for group in lock.groups.values() if group.secure_boot), None)
    if stated is None:
        return Store()
    return Store(signer=Signer(stated.fingerprint, partial(_sign, lock.path, stated)))


def _sign(lock: Path | None, stated: LockedSecureBoot, name: str, content: bytes) -> bytes:
    """A module with the signature that the lock wants.

    Raises:
        Refused: no fleet beside the lock has that certificate.
        GpuprovError: the key cannot be used.
    """
    for path in _fleets(lock):
        own = read_fleet(path).secure_boot if path.exists() else None
        if own is None:
            continue
        certificate, sign = signer(own, path.parent)
        if certificate.fingerprint == stated.fingerprint:
            return packed(name, sign(unpacked(name, content)))
    raise Refused(
        f"the lock wants modules signed for the certificate of {stated.signer} ({stated.serial}), and no"
        f" fleet beside it states that one in secure_boot",
        expected=" or ".join(map(str, _fleets(lock))),
        do="gpuprov lock, or run it where the fleet and its key are",
    )


def _fleets(lock: Path | None) -> list[Path]:
    """Where the fleet of a lock can be: NAME.yml for NAME.lock.yml, else fleet.yml, in the same folder."""
    if lock is None:
        return []
    own = lock.with_name(lock.name.removesuffix(LOCK) + ".yml")
    return list(dict.fromkeys([own, lock.with_name("fleet.yml")]))
