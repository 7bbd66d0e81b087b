"""Repositories built by a test, with methods that open them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuprov.locking.repository.apt import open_apt
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.index import Index
from gpuprov.locking.repository.rpm import open_rpm


@dataclass(frozen=True)
class Suite:
    """An apt suite `stable` with the component main."""

    root: Path
    keyring: bytes
    fetcher: Fetcher

    @property
    def folder(self) -> Path:
        return self.root / "dists/stable"

    @property
    def packages(self) -> Path:
        return self.folder / "main/binary-amd64"

    def open(self, **changes: object) -> Index:
        """Open the suite as gpuprov does, with changed arguments."""
        asked = {
            "url": self.root.as_uri(),
            "suite": "stable",
            "components": ["main"],
            "architecture": "amd64",
            "keyring": self.keyring,
            "fetcher": self.fetcher,
        }
        return open_apt(**(asked | changes))  # type: ignore[arg-type]


@dataclass(frozen=True)
class RpmRepository:
    """An rpm repository in a folder."""

    root: Path
    keyring: bytes
    fetcher: Fetcher

    @property
    def repodata(self) -> Path:
        return self.root / "repodata"

    def open(self, **changes: object) -> Index:
        """Open the repository as gpuprov does, with changed arguments."""
        asked = {
            "url": self.root.as_uri(),
            "arch": "x86_64",
            "keyring": self.keyring,
            "fetcher": self.fetcher,
        }
        return open_rpm(**(asked | changes))  # type: ignore[arg-type]
