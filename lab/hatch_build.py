"""Build hook: the lab requires gpuprov in the same version.

The other packages that the lab imports are requirements of gpuprov.
"""

from __future__ import annotations

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    """Requirement of gpuprov in the version of the lab."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dependencies: pip refuses or reports another version of gpuprov."""
        metadata["dependencies"] = [f"gpuprov=={metadata['version']}"]
