"""A newer catalog for an installed gpuprov: verified against one key, read whole, laid beside the others."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuprov.catalog.loading import DEVICES, LAYOUT, read_data
from gpuprov.catalog.releases import (
    MANIFEST,
    SIGNATURE,
    Release,
    brought,
    current,
    digest,
    keep,
    own,
    read_manifest,
    store,
)
from gpuprov.catalog.trust import KEY, one_key, remembered
from gpuprov.catalog.version import version
from gpuprov.errors import GpuprovError, InvalidInput, Refused
from gpuprov.locking.catalogs.sources import read_source
from gpuprov.untrusted.openpgp import armored
from gpuprov.untrusted.signature import verify_detached
from gpuprov.writing import replace_file


@dataclass(frozen=True)
class Updated:
    """What an update did.

    Attributes:
        release: the one that was brought.
        before: the newest that was here.
        place: where it came from.
        key: fingerprint of the key that signed.
    """

    release: Release
    before: Release
    place: str
    key: str


def update(source: str | None = None, *, stated: str | None = None, key: Path | None = None) -> Updated:
    """Bring a signed release of the catalog here. Nothing is taken of one that does not hold.

    Args:
        source: a folder, a wheel's path or URL; None: the package index that pip is set up with.
        stated: the version that it must have.
        key: the public key that must have signed; remembered, so that later calls need not name it.

    Raises:
        InvalidInput: no such source, no key is known yet, or it is no catalog that this gpuprov can read.
        Refused: a key file of several keys, a signature of another key or none, a file that is not what the
            manifest says, another version than was asked for, or other contents of a version that is here.
        Unreachable: the source does not answer.
    """
    keys = _keys(key)
    fingerprint = one_key(keys, str(key or store() / KEY))
    before = _before(key)
    found, place = read_source(source, stated)
    if MANIFEST not in found:
        raise InvalidInput(f"{place} has no {MANIFEST}", expected="a release of the catalog")
    if SIGNATURE not in found:
        raise Refused(f"{place} is not signed", expected=f"{SIGNATURE} beside {MANIFEST}")
    verify_detached(found[MANIFEST], found[SIGNATURE], keys, f"the catalog of {place}")
    number, files = _listed(found, place)
    if stated and version(stated) != version(number):
        raise Refused(f"{place} is catalog {number}", expected=f"{stated}, as was asked for")
    _check_new(number, files, keys)
    _read_whole(files)
    release = keep(number, files, (found[MANIFEST], found[SIGNATURE]))
    if key:
        _remember(keys)
    return Updated(release, before, place, fingerprint)


def _before(key: Path | None) -> Release:
    """The newest release that was here; where what is remembered is no key, one that is named replaces it."""
    try:
        return current()
    except (Refused, InvalidInput):
        if key is None:
            raise
        return own()


def _keys(key: Path | None) -> bytes:
    """The key that must sign, armored: the one named, or the one that signed before."""
    if key:
        return armored(key).encode()
    kept = remembered(store())
    if kept is None:
        raise InvalidInput(
            "no key is known that signs catalogs",
            expected="the public key of whoever makes them, once",
            do="gpuprov catalog update --key FILE",
        )
    return kept


def _remember(keys: bytes) -> None:
    try:
        replace_file(store() / KEY, keys)
    except OSError as error:
        raise GpuprovError(f"{store() / KEY} cannot be written: {error.strerror}") from error


def _listed(found: Mapping[str, bytes], place: str) -> tuple[str, dict[str, bytes]]:
    """Version and files of a manifest that is proven; what it does not list is left out."""
    manifest = read_manifest(found[MANIFEST], f"{place}/{MANIFEST}")
    number = manifest.pop("version")
    del manifest["format"]
    needed = {f"{name}.json" for name in (*LAYOUT, DEVICES)}
    if missing := needed - set(manifest):
        raise InvalidInput(f"the catalog of {place} has no {', '.join(sorted(missing))}")
    for name, total in manifest.items():
        if name not in found or hashlib.sha256(found[name]).hexdigest() != total:
            seen = "not what" if name in found else "missing, against what"
            raise Refused(
                f"{name} of {place} is {seen} the manifest says",
                do="it was changed on its way: fetch it again",
            )
    return number, {name: found[name] for name in manifest}


def _check_new(number: str, files: Mapping[str, bytes], keys: bytes) -> None:
    """Raises Refused for a second content under a version that is here."""
    for release in (own(), *brought(keys)):
        if release.version == version(number) and release.sha256 != digest(number, files):
            raise Refused(
                f"catalog {number} is here with other contents: {release}",
                do="a correction bears a version of its own: ask who made it",
            )


def _read_whole(files: Mapping[str, bytes]) -> None:
    """Raises InvalidInput where a record does not fit this gpuprov."""
    with tempfile.TemporaryDirectory(prefix="gpuprov-catalog-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        catalog = read_data(Path(folder))
        if not catalog.gpus or catalog.default_policy not in catalog.policies:  # rows are read when asked for
            raise InvalidInput(
                f"no GPUs, or no policy {catalog.default_policy!r}", expected="a whole catalog"
            )
