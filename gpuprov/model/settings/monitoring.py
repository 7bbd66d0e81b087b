"""Model of monitoring settings."""

from __future__ import annotations

from pydantic import Field

from gpuprov.model.documents import Strict


class Monitoring(Strict):
    """What a node tells Prometheus of itself."""

    textfile: str | None = Field(
        default=None,
        pattern=r"^/[\w./-]+$",
        description="folder of node_exporter's textfile collector; gets what the lock expects of the node",
    )
