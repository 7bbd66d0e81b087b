"""Leases without nodes, for the engines of upgrades and repairs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

from gpuprov.errors import GpuprovError, NodeFailed


class PaperLeases(AbstractContextManager["PaperLeases"]):
    """LeaseManager without other runs, except on `lost` nodes."""

    def __init__(self) -> None:
        self.lost: set[str] = set()
        self.released = 0

    def take(self, nodes: Iterable[str]) -> dict[str, GpuprovError]:
        """Return no errors: every node is leased."""
        return {}

    def prove(self, nodes: Iterable[str]) -> dict[str, GpuprovError]:
        """Return an error for each node whose lease another run took."""
        return {name: NodeFailed("another run took its lease") for name in nodes if name in self.lost}

    def release(self) -> None:
        """Count a release of all leases."""
        self.released += 1

    def __exit__(self, *_: object) -> None:
        pass
