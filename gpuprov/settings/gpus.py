"""How GPUs can be set."""

from __future__ import annotations

from pydantic import Field

from gpuprov.documents import Strict


class Clocks(Strict):
    """A fixed pair of clocks in MHz, one that `nvidia-smi -q -d SUPPORTED_CLOCKS` lists."""

    graphics: int = Field(gt=0, lt=10_000)
    memory: int = Field(gt=0, lt=30_000)
