"""Sources of a catalog release: a folder, a wheel, or pip's configured package index.

A wheel is read, never installed: none of its code runs.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from gpuprov.catalog.releases import FILE, MANIFEST, SIGNATURE
from gpuprov.errors import GpuprovError, InvalidInput, Unreachable
from gpuprov.locking.catalogs.pip import run_pip
from gpuprov.locking.repository.fetch import SCHEMES, Fetcher, place_of
from gpuprov.untrusted.archives import DAMAGED, member_names, open_zip, read_member
from gpuprov.untrusted.stated import read_bounded

PACKAGE = "gpuprov-catalog"
INSIDE = "gpuprov_catalog"
"""The wheel's folder with the files."""
LARGEST = 10_000_000
"""Maximum size of all files of a release in bytes; a release has 600 KB."""
MEMBERS = 100
"""Maximum number of files of a wheel; gpuprov's has about 20."""


def read_source(source: str | None, stated: str | None = None) -> tuple[Mapping[str, bytes], str]:
    """Return the files of a release, unverified, and the name of the place.

    Files of a folder or wheel that do not belong to a release are left out.

    Args:
        source: a folder, a wheel's path or URL; None: the newest wheel of the package index.
        stated: the version to request from the package index.

    Raises:
        InvalidInput: no such folder or file, it is no wheel, or too large.
        Unreachable: the package index does not answer, or has no release.
        GpuprovError: a file cannot be read.
    """
    if source is None:
        return _from_index(stated)
    if source.partition(":")[0] in SCHEMES:
        content, place = Fetcher().get(source), place_of(source)
        if content is None:
            raise InvalidInput(f"nothing at {place}", expected="a wheel of gpuprov-catalog")
        return read_wheel(content, place), place
    path = Path(source)
    if path.is_dir():
        names = (each for each in path.iterdir() if _belongs(each.name))
        return {each.name: _bounded(each) for each in names}, str(path)
    if not path.is_file():
        raise InvalidInput(f"{path} does not exist", expected="a folder or a wheel of gpuprov-catalog")
    return read_wheel(_bounded(path), str(path)), str(path)


def _from_index(stated: str | None) -> tuple[Mapping[str, bytes], str]:
    """Download the newest wheel of pip's index, or that of a version, with pip; return the files in it, and
    the name of the place.

    Raises:
        InvalidInput: the wheel contains no release, or too large files.
        Unreachable: pip fails, exceeds a limit, or downloads no wheel.
    """
    wanted = f"{PACKAGE}=={stated}" if stated else PACKAGE
    with tempfile.TemporaryDirectory(prefix="gpuprov-catalog-") as folder:
        run_pip(
            "download", "--no-deps", "--only-binary=:all:", "--quiet", "--dest", folder, wanted, do=_BY_HAND
        )
        wheels = sorted(Path(folder).glob("*.whl"))
        if not wheels:
            raise Unreachable(f"pip download {wanted}: it downloaded no wheel", do=_BY_HAND)
        return read_wheel(_bounded(wheels[0]), wheels[0].name), f"the package index ({wheels[0].name})"


_BY_HAND = "check pip's index, or name a folder or a wheel: gpuprov catalog update PATH"


def _belongs(name: str) -> bool:
    """Return whether a file of that name is part of a release: manifest, signature or data."""
    return name in (MANIFEST, SIGNATURE) or FILE.fullmatch(name) is not None


def _bounded(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        InvalidInput: it is larger than `LARGEST`.
        GpuprovError: it cannot be read.
    """
    try:
        return read_bounded(path, LARGEST)
    except OSError as error:
        if error.errno == errno.EFBIG:
            seen = f"{path} is larger than {LARGEST} bytes"
            raise InvalidInput(seen, expected="a file of a catalog") from None
        raise GpuprovError(f"{path} cannot be read: {error.strerror}") from error


def read_wheel(content: bytes, name: str) -> dict[str, bytes]:
    """Return the files of a release in a wheel, by name and unverified; empty if it contains none.

    Raises:
        InvalidInput: not a wheel, its files are too large or too many, or some have the same name.
    """
    found: dict[str, bytes] = {}
    try:
        with open_zip(BytesIO(content)) as wheel:
            for member in member_names(wheel, MEMBERS):
                folder, _, file = member.rpartition("/")
                if folder == INSIDE and _belongs(file):
                    room = LARGEST - sum(map(len, found.values()))
                    found[file] = read_member(wheel, member, room)
    except DAMAGED as error:
        raise InvalidInput(f"{name}: {error}", expected="a wheel of gpuprov-catalog") from error
    return found
