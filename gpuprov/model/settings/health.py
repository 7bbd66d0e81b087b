"""Model of the settings of a node's health check."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpuprov.model.documents import Strict

Rule = Annotated[str, Field(pattern=r"^[a-z]+\.[A-Za-z0-9_]{1,40}$")]
RuleClass = Literal["isolate", "reset", "watch", "none", "off"]


class Health(Strict):
    """Rules of the doctor that a node judges itself, by a timer."""

    interval: int = Field(default=60, ge=10, le=3600, description="seconds between two runs")
    grace: int = Field(
        default=300, ge=0, le=3600, description="seconds after a boot in which no fault counts"
    )
    hold: int = Field(
        default=600,
        ge=60,
        le=86400,
        description="seconds for which a fault has to be gone before the node is healthy again",
    )
    rules: dict[Rule, RuleClass] = Field(
        default_factory=dict, description="rule of the doctor to the class of its faults, or `off`"
    )
    command: str | None = Field(
        default=None,
        pattern=r"^/[\w./-]+$",
        description="program that is started with verdict and rule after each change of the verdict",
    )
