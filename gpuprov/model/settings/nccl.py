"""Types of NCCL variables."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

NcclVariable = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
NcclValue = int | Annotated[str, Field(pattern=r"^[^\s\"'#$\\]*$")]
