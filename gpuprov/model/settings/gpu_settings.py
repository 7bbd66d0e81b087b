"""Models of GPU settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from gpuprov.model.documents import Strict


class Clocks(Strict):
    """A fixed pair of clocks in MHz from the list of `nvidia-smi -q -d SUPPORTED_CLOCKS`."""

    graphics: int = Field(gt=0, lt=10_000)
    memory: int = Field(gt=0, lt=30_000)


def _without_boolean(stated: object) -> object:
    """Return `off` for False, as which YAML 1.1 reads it; other values unchanged."""
    return "off" if stated is False else stated


ComputeMode = Literal["default", "exclusive_process", "prohibited"]
MigProfile = Annotated[str, Field(pattern=r"^[1-7]g\.\d+gb(\+me)?$")]
"""A GPU instance's profile as `nvidia-smi mig -lgip` names it, such as 3g.40gb."""
ImexMode = Annotated[Literal["service", "dra", "dra-host", "off"], BeforeValidator(_without_boolean)]
"""Where the daemons of IMEX come from: each host, the DRA driver of Kubernetes, or no daemons."""
