"""Trust in releases of the catalog: one stored key, and its signatures."""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path

from gpuprov.errors import InvalidInput, Refused
from gpuprov.untrusted.openpgp import Keys, fingerprints, other_contents
from gpuprov.untrusted.signature import verify_detached

LOG = logging.getLogger(__name__)
KEY = "key.asc"
"""The stored key, in the folder of releases."""


def one_key(keys: Keys, name: str) -> str:
    """Return the fingerprint of the only key in a key file.

    Raises:
        Refused: it holds more than one key, or no key.
        InvalidInput: it is not a key file.
    """
    found = fingerprints(keys)
    surplus = other_contents(keys, found[0]) if found else ["no key that gpgv accepts"]
    if surplus:
        raise Refused(
            f"the key file {name} holds {', '.join([*found[:1], *surplus])}",
            expected="exactly one key, because each key could sign a catalog",
            do="gpg --armor --export FINGERPRINT >FILE, then gpuprov catalog update --key FILE",
        )
    return found[0]


def remembered(folder: Path) -> bytes | None:
    """Return the key that must sign; None if no key was stored yet.

    Raises:
        Refused, InvalidInput: the stored file is not one key.
    """
    path = folder / KEY
    if not path.is_file():
        return None
    keys = path.read_bytes()
    one_key(keys, str(path))
    return keys


@lru_cache(maxsize=64)
def is_signed(manifest: bytes, signature: bytes, keys: bytes, name: str) -> bool:
    """Return whether one of the keys has validly signed a manifest: not expired, not revoked.

    If not, a warning is logged.

    Args:
        name: the release, for the warning.

    Raises:
        GpuprovError: gpgv is missing.
    """
    try:
        verify_detached(manifest, signature, keys, name)
    except (Refused, InvalidInput) as error:
        LOG.warning("%s; it is not used", error)
        return False
    return True
