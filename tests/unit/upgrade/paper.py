"""Leases without nodes, for the engines of upgrades and repairs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

from gpuprov.errors import GpuprovError, NodeFailed, Refused


class PaperLeases(AbstractContextManager["PaperLeases"]):
    """LeaseManager without other runs, except on `lost` nodes, and at the begin on `refused` ones."""

    def __init__(self) -> None:
        self.lost: set[str] = set()
        self.refused: set[str] = set()
        self.released = 0

    def take(self, nodes: Iterable[str]) -> dict[str, GpuprovError]:
        """Return an error for each node that another run holds from the begin on."""
        return {name: Refused("leased by x@y") for name in nodes if name in self.refused}

    def prove(self, nodes: Iterable[str]) -> dict[str, GpuprovError]:
        """Return an error for each node whose lease another run took."""
        return {name: NodeFailed("another run took its lease") for name in nodes if name in self.lost}

    def release(self) -> None:
        """Count a release of all leases."""
        self.released += 1

    def __exit__(self, *_: object) -> None:
        pass
