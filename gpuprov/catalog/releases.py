"""Releases of the catalog: the one shipped with gpuprov and newer ones, each with version and hash.

A release is a folder of data files; its hash is computed from their contents. Releases are below
`$XDG_STATE_HOME/gpuprov/catalogs`, each in a folder named after its hash, and are checked against it at every
read.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from gpuprov.catalog.trust import is_signed, remembered
from gpuprov.catalog.version import Version, version
from gpuprov.errors import GpuprovError, InvalidInput, Refused
from gpuprov.files.runs import state_dir
from gpuprov.untrusted.parsing import read_json

OWN = Path(__file__).parent / "data"
"""Data files of the release shipped with gpuprov."""
FORMAT = 1
"""Highest format of records that this gpuprov can read; a higher one requires a newer gpuprov."""
MANIFEST = "catalog.json"
SIGNATURE = "catalog.json.asc"
MANIFEST_BYTES = 1 << 20
"""Maximum size of a manifest, which has a line for each file."""
VERSION = re.compile(r"\d{4}(?:\.\d{1,4}){2,3}")
FILE = re.compile(r"[a-z][a-z_]{0,40}\.json")


@dataclass(frozen=True)
class Release:
    """One release.

    Attributes:
        folder: folder of its files.
        version: `2026.11.22`, the date of its facts; a fourth number for a second release of that day.
        sha256: hash of its files, from `digest`.
        signed: whether the remembered key has signed it.
    """

    folder: Path
    version: Version
    sha256: str
    signed: bool = False

    def __str__(self) -> str:
        return f"{self.version} (sha256 {self.sha256[:12]}…)"


def contents(folder: Path) -> dict[str, bytes]:
    """Return the data files of a folder, name → bytes, without the manifest and files with other names;
    OSError if one cannot be read.
    """
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.glob("*.json"))
        if path.name != MANIFEST and FILE.fullmatch(path.name)
    }


def digest(stated: str, files: Mapping[str, bytes]) -> str:
    """Return the hash of a release: SHA256 of its version and the sum of each file, in sha256sum's format."""
    return digest_of_sums(stated, {name: hashlib.sha256(each).hexdigest() for name, each in files.items()})


def digest_of_sums(stated: str, sums: Mapping[str, str]) -> str:
    """Return the hash of a release from its version and the sum of each file."""
    lines = [f"{total}  {name}\n" for name, total in sorted(sums.items())]
    return hashlib.sha256("".join([f"{stated}\n", *lines]).encode()).hexdigest()


def own() -> Release:
    """Return the release shipped with gpuprov; its version is the newest date of its files."""
    return _OWN.release


class _Own:
    """Version and hash of gpuprov's own release, computed at first use: most calls need only the folder."""

    @cached_property
    def version(self) -> Version:
        """The newest date of the files."""
        head = (path.read_text(encoding="utf-8")[:200] for path in OWN.glob("*.json"))
        days = (re.search(r'"as_of": "(\d{4})-(\d\d)-(\d\d)"', text) for text in head)
        return max(version(".".join(day.groups())) for day in days if day)

    @cached_property
    def release(self) -> Release:
        """The release with its hash."""
        return Release(OWN, self.version, digest(str(self.version), contents(OWN)))


_OWN = _Own()


def store() -> Path:
    """Return the folder of all releases except gpuprov's own; it need not exist. Raises as `state_dir`."""
    return state_dir() / "catalogs"


def brought(keys: bytes | None = None) -> Iterator[Release]:
    """Yield the installed releases that a key has signed, by default the remembered one; newest first.

    Releases without that signature are used only by locks that pin them by their hash. Without any key,
    nothing is yielded. Data files are not checked (see `check`).

    Raises:
        Refused, InvalidInput: the remembered key is not exactly one key, or a stored manifest is not valid.
    """
    keys = keys or remembered(store())
    if keys is None:
        return
    for release in sorted(_kept(), key=lambda each: each.version, reverse=True):
        manifest, signature = (release.folder / name for name in (MANIFEST, SIGNATURE))
        if signature.is_file() and is_signed(
            manifest.read_bytes(), signature.read_bytes(), keys, f"catalog {release}"
        ):
            yield replace(release, signed=True)


def _kept() -> Iterator[Release]:
    """Yield the installed releases whose manifest has the hash of their folder's name; data files are not
    checked.

    Raises:
        InvalidInput: a manifest is not valid, or is for a newer gpuprov.
    """
    for manifest in store().glob(f"*/{MANIFEST}"):
        listed = read_manifest(manifest.read_bytes(), str(manifest))
        stated = listed.pop("version")
        del listed["format"]
        if digest_of_sums(stated, listed) == manifest.parent.name:
            yield Release(manifest.parent, version(stated), manifest.parent.name)


def current() -> Release:
    """Return the newest release signed by the remembered key, or gpuprov's own if none is newer.

    The data files are not checked (see `check`).

    Raises:
        Refused, InvalidInput: as `brought`.
    """
    newest = next(brought(), None)
    return newest if newest and newest.version > _OWN.version else own()


def current_folder() -> Path:
    """Return the folder of the newest release, without hashing gpuprov's own.

    Raises:
        Refused: a file of an installed release was changed, or its folder is another user's.
        InvalidInput: a manifest is not valid.
    """
    if not store().is_dir():
        return OWN
    release = current()
    if release.folder != OWN:
        check(release)
    return release.folder


def pinned(stated: str, sha256: str) -> Release:
    """Return the release of that version and hash, gpuprov's own or an installed one, after a check of its
    files.

    Raises:
        Refused: it is not installed, or was changed.
        InvalidInput: its manifest is not valid.
    """
    if own().sha256 == sha256:
        return own()
    release = Release(store() / sha256, version(stated), sha256)
    if not (release.folder / MANIFEST).is_file():
        raise Refused(
            f"the lock was made with catalog {release}, which is not installed; the newest is {current()}",
            do=f"install it: gpuprov catalog update --release {stated}; "
            "or update the lock: gpuprov lock --upgrade",
        )
    check(release)
    return release


def check(release: Release) -> None:
    """Check that the files of a release still match its hash.

    Raises:
        Refused: they differ.
    """
    found = digest(str(release.version), contents(release.folder))
    if found != release.sha256:
        raise Refused(
            f"catalog {release} in {release.folder} was changed: its files have sha256 {found[:12]}…",
            do="remove that folder, and install the release again: gpuprov catalog update",
        )


def manifest_of(stated: str, files: Mapping[str, bytes]) -> bytes:
    """Return the manifest of a release, which its signature covers."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    said = {"schema": "gpuprov.catalog-release/1", "version": stated, "format": FORMAT, "files": sums}
    return (json.dumps(said, indent=1) + "\n").encode()


def read_manifest(text: bytes, name: str) -> dict[str, str]:
    """Parse a manifest; return file name → its SHA256, and `version` and `format` with their values.

    Files whose names are not those of a catalog's files are left out.

    Raises:
        InvalidInput: not a manifest, or one of a later format than `FORMAT`.
    """
    try:
        said = read_json(text, MANIFEST_BYTES)
        schema, stated, number, files = (said[key] for key in ("schema", "version", "format", "files"))
        sums = {str(file): str(total) for file, total in files.items() if FILE.fullmatch(file)}
        numbered = VERSION.fullmatch(stated)[0]  # type: ignore[index]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(
            f"{name} is not the manifest of a catalog", expected="gpuprov.catalog-release/1"
        ) from None
    if schema != "gpuprov.catalog-release/1" or not isinstance(number, int) or number > FORMAT:
        raise InvalidInput(
            f"{name} is a catalog of {schema}, format {number}",
            expected=f"gpuprov.catalog-release/1, format {FORMAT} at most",
            do="upgrade gpuprov first",
        )
    return {"version": numbered, "format": str(number), **sums}


def keep(stated: str, files: Mapping[str, bytes], signed: tuple[bytes, bytes] | None = None) -> Release:
    """Store a release atomically; an existing one is kept.

    Args:
        signed: its manifest and the signature of that; without them the release serves only locks that pin
            it, and never becomes the current one.

    Raises:
        GpuprovError: the folder cannot be written.
    """
    from gpuprov.files.writing import replace_file

    sha256 = digest(stated, files)
    release = Release(store() / sha256, version(stated), sha256, signed is not None)
    try:
        if not release.folder.is_dir():
            _lay(release.folder, {**files, MANIFEST: manifest_of(stated, files)})
        if signed:
            for name, content in zip((MANIFEST, SIGNATURE), signed, strict=True):
                replace_file(release.folder / name, content)
    except OSError as error:
        raise GpuprovError(
            f"catalogs cannot be kept in {store()}: {error}", do="set XDG_STATE_HOME"
        ) from error
    return release


def _lay(folder: Path, files: Mapping[str, bytes]) -> None:
    """Create a folder of files; another process may create the same one at the same time.

    Raises:
        OSError: the folder cannot be written, and no other process has created it.
    """
    from gpuprov.files.writing import make_folders, replace_file

    make_folders(folder.parent)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        for name, content in files.items():
            replace_file(partial / name, content)
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not folder.is_dir():
            raise
