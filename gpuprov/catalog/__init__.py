"""The catalog: facts about hardware and software with their sources,
and compatibility rules as predicates.
"""

from __future__ import annotations

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.loading import load
from gpuprov.catalog.version import Version, version

__all__ = ["Catalog", "Version", "load", "version"]
