"""All readers, called one after the other."""

from __future__ import annotations

from pathlib import Path

from gpuprov.catalog import Catalog
from gpuprov.errors import GpuprovError
from gpuprov.locking.catalogs.refresh.packages import read_archives, read_nvidia
from gpuprov.locking.catalogs.refresh.seen import NotRead, Readings
from gpuprov.locking.catalogs.refresh.wheels import read_wheels


def read_all(catalog: Catalog, base: str | None, key: Path | None, day: str) -> Readings:
    """Return all readings, with a `NotRead` for each list that cannot be read.

    Args:
        base: a folder or URL of a mirror of NVIDIA's repositories; if given, nothing else is read.
        key: the public key of that mirror.
        day: of the readings, ISO.
    """
    if base:
        return read_nvidia(catalog, base, key, day)
    found: Readings = []
    for what, reader in (("wheels", read_wheels), ("archives", read_archives)):
        try:
            found = [*found, *reader(catalog, day)]
        except GpuprovError as error:
            found = [*found, NotRead(what, str(error))]
    return [*read_nvidia(catalog, None, key, day), *found]
