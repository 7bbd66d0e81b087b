"""Models of GPU settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpuprov.model.documents import Strict


class Clocks(Strict):
    """A fixed pair of clocks in MHz from the list of `nvidia-smi -q -d SUPPORTED_CLOCKS`."""

    graphics: int = Field(gt=0, lt=10_000)
    memory: int = Field(gt=0, lt=30_000)


ComputeMode = Literal["default", "exclusive_process", "prohibited"]
MigProfile = Annotated[str, Field(pattern=r"^[1-7]g\.\d+gb(\+me)?$")]
"""A GPU instance's profile as `nvidia-smi mig -lgip` names it, such as 3g.40gb."""
