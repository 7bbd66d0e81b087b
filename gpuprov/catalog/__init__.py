"""The catalog: what is true of the world, as data with sources, and the rules as plain predicates."""

from __future__ import annotations

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.loading import load
from gpuprov.catalog.version import Version, version

__all__ = ["Catalog", "Version", "load", "version"]
