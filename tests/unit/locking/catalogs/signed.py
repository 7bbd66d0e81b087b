"""Signed releases of the catalog for tests: gpg with a key of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuprov.catalog.releases import OWN
from gpuprov.catalog.writing import render
from gpuprov.lab.mirror.key import SigningKey, signing_key
from gpuprov.locking.catalogs.sealing import seal


@contextmanager
def signer(folder: Path) -> Iterator[tuple[SigningKey, Path]]:
    """A key, and its public part as a file."""
    with signing_key() as key:
        public = folder / f"{key.fingerprint}.asc"
        public.write_bytes(key.public)
        yield key, public


def newer(folder: Path, **changed: Any) -> Path:
    """A copy of the data; `drivers={580: {"latest_known": …}}` changes branches, `as_of` the day."""
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
    """A signed release in `folder`/release, its wheel in `folder`."""
    data = newer(folder / "data", **changed)
    with patch.context() as scoped:
        scoped.setenv("GNUPGHOME", str(key.home))
        seal(folder / "release", key.fingerprint, stated=stated, data=data)
    return folder / "release"
