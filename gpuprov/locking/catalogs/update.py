"""Update of an installed gpuprov's catalog, verified with one key and read completely."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuprov.catalog.identity import find_system
from gpuprov.catalog.loading import DEVICES, LATER, LAYOUT, read_data
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
from gpuprov.files.writing import replace_file
from gpuprov.locking.catalogs.sources import read_source
from gpuprov.locking.resolve import Request, resolve
from gpuprov.untrusted.openpgp import armored
from gpuprov.untrusted.signature import verify_detached
from gpuprov.untrusted.stated import stated_file

WHOLE = "a whole catalog"


@dataclass(frozen=True)
class Updated:
    """Result of an update.

    Attributes:
        release: the new release.
        before: the newest release before the update.
        place: source of the release.
        key: fingerprint of the signing key.
    """

    release: Release
    before: Release
    place: str
    key: str


def update(source: str | None = None, *, stated: str | None = None, key: Path | None = None) -> Updated:
    """Install a signed release of the catalog; an invalid one is not stored at all.

    Args:
        source: a folder, a wheel's path or URL; None: pip's configured package index.
        stated: the required version.
        key: the public key that must have signed; it is remembered for later calls.

    Raises:
        InvalidInput: no such source, no key is known yet, or this gpuprov cannot read the catalog.
        Refused: a key file of several keys; no signature, or one of another key; a file that differs from the
            manifest; another version than `stated`; or other contents than the installed release of that
            version.
        Unreachable: the source does not answer.
        GpuprovError: the release or the key cannot be stored.
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
        raise Refused(f"{place} is catalog {number}", expected=f"{stated}, as stated")
    _check_new(number, files, keys)
    _read_whole(files)
    release = keep(number, files, (found[MANIFEST], found[SIGNATURE]))
    if key:
        _remember(keys)
    return Updated(release, before, place, fingerprint)


def _before(key: Path | None) -> Release:
    """Return the newest release before the update.

    It is gpuprov's own if the remembered key is invalid and `key` replaces it.

    Raises:
        Refused, InvalidInput: the remembered key is invalid, and none replaces it.
    """
    try:
        return current()
    except (Refused, InvalidInput):
        if key is None:
            raise
        return own()


def _keys(key: Path | None) -> bytes:
    """Return the required key, armored: the given one, or the remembered one.

    Raises:
        InvalidInput: there is neither.
    """
    if key:
        return armored(key).encode()
    kept = remembered(store())
    if kept is None:
        raise InvalidInput(
            "no key is known that signs catalogs",
            expected="the public key of the catalog's publisher, once",
            do="gpuprov catalog update --key FILE",
        )
    return kept


def _remember(keys: bytes) -> None:
    """Store the key for later updates in place of the previous one; GpuprovError if the file cannot be
    written.
    """
    try:
        replace_file(store() / KEY, keys)
    except OSError as error:
        raise GpuprovError(f"{store() / KEY} cannot be written: {error.strerror}") from error


def _listed(found: Mapping[str, bytes], place: str) -> tuple[str, dict[str, bytes]]:
    """Return version and files of a verified manifest; files that it does not list are left out.

    Raises:
        InvalidInput: not a manifest, or it lacks a data file that this gpuprov needs.
        Refused: a listed file is missing, or has another checksum.
    """
    manifest = read_manifest(found[MANIFEST], f"{place}/{MANIFEST}")
    number = manifest.pop("version")
    del manifest["format"]
    needed = {f"{name}.json" for name in (*LAYOUT, DEVICES) if name not in LATER}
    if missing := needed - set(manifest):
        raise InvalidInput(f"the catalog of {place} has no {', '.join(sorted(missing))}")
    for name, total in manifest.items():
        if name not in found or hashlib.sha256(found[name]).hexdigest() != total:
            seen = "changed" if name in found else "missing"
            raise Refused(
                f"{name} of {place} is {seen}: it does not match the manifest",
                do="fetch it again: a file was changed or lost in transit",
            )
    return number, {name: found[name] for name in manifest}


def _check_new(number: str, files: Mapping[str, bytes], keys: bytes) -> None:
    """Check that no installed release of this version has other contents.

    Raises:
        Refused: one has.
    """
    for release in (own(), *brought(keys)):
        if release.version == version(number) and release.sha256 != digest(number, files):
            raise Refused(
                f"catalog {number} is installed with other contents: {release}",
                do="ask its publisher: a correction needs a new version",
            )


def _read_whole(files: Mapping[str, bytes]) -> None:
    """Check that this gpuprov can read every record, and can use the parts that have no type.

    Raises:
        InvalidInput: a record has another format, or the catalog is incomplete.
    """
    with (
        tempfile.TemporaryDirectory(prefix="gpuprov-catalog-") as folder,
        stated_file("the new catalog", expected=WHOLE),
    ):
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        catalog = read_data(Path(folder))
        if not catalog.gpus or catalog.default_policy not in catalog.policies:  # rows are parsed at first use
            raise InvalidInput(f"no GPUs, or no policy {catalog.default_policy!r}", expected=WHOLE)
        for name, expected in ((catalog.gpus[0].id, Refused), ("no such model", InvalidInput)):
            with suppress(expected):
                resolve(Request(gpus=(name,), os=next(iter(catalog.systems))), catalog)
        with suppress(InvalidInput):
            find_system(catalog, "no such system")
        if not all(isinstance(key["id"], str) for key in catalog.facts["systems"]["signing_keys"]):
            raise InvalidInput("signing_keys has a key without an id", expected=WHOLE)
