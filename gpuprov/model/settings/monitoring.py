"""Model of monitoring settings."""

from __future__ import annotations

from pydantic import Field

from gpuprov.model.documents import Strict


class Monitoring(Strict):
    """Values that a node exports to Prometheus."""

    textfile: str | None = Field(
        default=None,
        pattern=r"^/[\w./-]+$",
        description="folder of node_exporter's textfile collector, for the values that the lock expects",
    )
