"""Releases of the catalog: the one that came with gpuprov and newer ones, each by version and hash.

A release is a folder of data files; its hash is that of their contents. Releases lie below
`$XDG_STATE_HOME/gpuprov/catalogs`, each in a folder that is called after its hash, and are checked against it
whenever they are read.
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
from gpuprov.runs import state_dir
from gpuprov.writing import replace_file

OWN = Path(__file__).parent / "data"
"""The data of the release that came with gpuprov."""
FORMAT = 1
"""Which records this gpuprov can read; a release of a higher number is for a newer one."""
MANIFEST = "catalog.json"
SIGNATURE = "catalog.json.asc"
VERSION = re.compile(r"\d{4}(?:\.\d{1,4}){2,3}")
FILE = re.compile(r"[a-z][a-z_]{0,40}\.json")


@dataclass(frozen=True)
class Release:
    """One release.

    Attributes:
        folder: where its files are.
        version: `2026.11.22`, the day that the facts speak of; a fourth number for a second one of that day.
        sha256: of its files, by `digest`.
        signed: whether the remembered key has signed it.
    """

    folder: Path
    version: Version
    sha256: str
    signed: bool = False

    def __str__(self) -> str:
        return f"{self.version} (sha256 {self.sha256[:12]}…)"


def contents(folder: Path) -> dict[str, bytes]:
    """The data files of a folder, by name."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.glob("*.json"))
        if path.name != MANIFEST and FILE.fullmatch(path.name)
    }


def digest(stated: str, files: Mapping[str, bytes]) -> str:
    """The hash of a release: SHA256 over its version and the sum of each file, as sha256sum prints them."""
    return digest_of_sums(stated, {name: hashlib.sha256(each).hexdigest() for name, each in files.items()})


def digest_of_sums(stated: str, sums: Mapping[str, str]) -> str:
    """Return the same hash, of the sum of each file."""
    lines = [f"{total}  {name}\n" for name, total in sorted(sums.items())]
    return hashlib.sha256("".join([f"{stated}\n", *lines]).encode()).hexdigest()


def own() -> Release:
    """The release that came with gpuprov: its version is the newest day that one of its files speaks of."""
    return _OWN.release


class _Own:
    """Hashed once, and only when somebody asks: most calls need no more than the folder."""

    @cached_property
    def version(self) -> Version:
        head = (path.read_text(encoding="utf-8")[:200] for path in OWN.glob("*.json"))
        days = (re.search(r'"as_of": "(\d{4})-(\d\d)-(\d\d)"', text) for text in head)
        return max(version(".".join(day.groups())) for day in days if day)

    @cached_property
    def release(self) -> Release:
        return Release(OWN, self.version, digest(str(self.version), contents(OWN)))


_OWN = _Own()


def store() -> Path:
    """The folder of releases beside gpuprov's own."""
    return state_dir() / "catalogs"


def brought(keys: bytes | None = None) -> Iterator[Release]:
    """Releases that updates brought and that a key has signed, by default the remembered one; newest first.

    Others are there for locks that pin them by their hash, and count for nothing else.

    Raises:
        Refused, InvalidInput: what is remembered is not one key.
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
    for manifest in store().glob(f"*/{MANIFEST}"):
        listed = read_manifest(manifest.read_bytes(), str(manifest))
        stated = listed.pop("version")
        del listed["format"]
        if digest_of_sums(stated, listed) == manifest.parent.name:
            yield Release(manifest.parent, version(stated), manifest.parent.name)


def current() -> Release:
    """The newest release that the remembered key has signed, or gpuprov's own; locks may pin others."""
    newest = next(brought(), None)
    return newest if newest and newest.version > _OWN.version else own()


def current_folder() -> Path:
    """Where the newest release's files are, without hashing gpuprov's own.

    Raises:
        Refused: a file of a release that was brought is not what it was.
    """
    if not store().is_dir():
        return OWN
    release = current()
    if release.folder != OWN:
        check(release)
    return release.folder


def pinned(stated: str, sha256: str) -> Release:
    """The release of that version and hash.

    Raises:
        Refused: it is not here, or not what it was.
    """
    if own().sha256 == sha256:
        return own()
    release = Release(store() / sha256, version(stated), sha256)
    if not (release.folder / MANIFEST).is_file():
        raise Refused(
            f"the lock was made with catalog {release}, which is not here: there is {current()}",
            do=f"bring it: gpuprov catalog update --release {stated}; "
            "or move the lock to today's: gpuprov lock --upgrade",
        )
    check(release)
    return release


def check(release: Release) -> None:
    """Raises Refused where the files of a release are no longer what its hash says."""
    found = digest(str(release.version), contents(release.folder))
    if found != release.sha256:
        raise Refused(
            f"catalog {release} in {release.folder} was changed: its files have sha256 {found[:12]}…",
            do="remove that folder, and bring the release again: gpuprov catalog update",
        )


def manifest_of(stated: str, files: Mapping[str, bytes]) -> bytes:
    """What a release says of itself, and what its signature is over."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    said = {"schema": "gpuprov.catalog-release/1", "version": stated, "format": FORMAT, "files": sums}
    return (json.dumps(said, indent=1) + "\n").encode()


def read_manifest(text: bytes, name: str) -> dict[str, str]:
    """Version of a manifest, as `version`, with `format` and the sum of each file beside it.

    Raises:
        InvalidInput: not a manifest, or one for a newer gpuprov.
    """
    try:
        said = json.loads(text)
        schema, stated, number, files = (said[key] for key in ("schema", "version", "format", "files"))
        sums = {str(file): str(total) for file, total in files.items() if FILE.fullmatch(file)}
        numbered = VERSION.fullmatch(stated)[0]  # type: ignore[index]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidInput(
            f"{name} is no manifest of a catalog", expected="gpuprov.catalog-release/1"
        ) from None
    if schema != "gpuprov.catalog-release/1" or not isinstance(number, int) or number > FORMAT:
        raise InvalidInput(
            f"{name} is a catalog of {schema}, format {number}",
            expected=f"gpuprov.catalog-release/1, format {FORMAT} at most",
            do="upgrade gpuprov first",
        )
    return {"version": numbered, "format": str(number), **sums}


def keep(stated: str, files: Mapping[str, bytes], signed: tuple[bytes, bytes] | None = None) -> Release:
    """Lay a release into the store, whole or not at all; what is there already stays.

    Args:
        signed: its manifest and the signature over that; without them the release is there for locks that
            pin it, and never the current one.

    Raises:
        GpuprovError: the folder cannot be written.
    """
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
    """Make a folder of files; another process may be making the same one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        for name, content in files.items():
            replace_file(partial / name, content)
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not folder.is_dir():
            raise
