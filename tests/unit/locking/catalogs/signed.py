"""Signed releases of the catalog for tests, with a separate gpg key."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuprov.catalog.releases import OWN
from gpuprov.locking.catalogs.sealing import seal
from gpuprov_lab.mirror.key import SigningKey, signing_key
from maintenance.data_files import render


@contextmanager
def signer(folder: Path) -> Iterator[tuple[SigningKey, Path]]:
    """Make a key, and write its public part to a file."""
    with signing_key() as key:
        public = folder / f"{key.fingerprint}.asc"
        public.write_bytes(key.public)
        yield key, public


def newer(folder: Path, **changed: Any) -> Path:
    """Copy the data with changes: `drivers={580: {"latest_known": …}}` of branches, `as_of` of the day."""
    shutil.copytree(OWN, folder)
    path = folder / "drivers.json"
    document = json.loads(path.read_text())
    for row in document["branches"]:
        row |= changed.get("drivers", {}).get(row["branch"], {})
    document["as_of"] = changed.get("as_of", "2027-01-15")
    path.write_text(render(document))
    return folder


def sealed(
    folder: Path, key: SigningKey, patch: pytest.MonkeyPatch, *, stated: str = "2027.1.15", **changed: Any
) -> Path:
    """Make a signed release in `folder`/release, and its wheel in `folder`."""
    newer(folder / "data", **changed)
    return with_data(folder, key, patch, stated=stated)


def with_data(folder: Path, key: SigningKey, patch: pytest.MonkeyPatch, *, stated: str = "2027.1.15") -> Path:
    """Make a signed release of `folder`/data in `folder`/release, and its wheel in `folder`."""
    with patch.context() as scoped:
        scoped.setenv("GNUPGHOME", str(key.home))
        seal(folder / "release", key.fingerprint, stated=stated, data=folder / "data")
    return folder / "release"
