"""Models of operating system tuning for GPU work."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpuprov.model.documents import Strict

# limits.conf(5) counts these in KiB, so that finer values cannot be stored.
Kibibytes = Annotated[int, Field(ge=0, multiple_of=1024)] | Literal["unlimited"]
Sysctl = Annotated[str, Field(pattern=r"^[a-z0-9_]+([./][A-Za-z0-9_-]+)+$")]
Variable = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$")]
Text = Annotated[str, Field(pattern=r"^[^\s\"'#$\\]*$")]


class Limits(Strict):
    """Limits of every login and every service; None keeps the system's."""

    memlock: Kibibytes | None = Field(default=None, description="memory that may be locked, in bytes")
    stack: Kibibytes | None = Field(default=None, description="stack of a program, in bytes")
    nofile: Annotated[int, Field(ge=1024)] | None = Field(default=None, description="number of open files")


class Tuning(Strict):
    """Tuning of the system; None or an empty mapping keeps the system's values."""

    limits: Limits = Limits()
    sysctl: dict[Sysctl, int | Text] = Field(
        default={}, max_length=1000, description="kernel parameters by name"
    )
    transparent_hugepages: Literal["always", "madvise", "never"] | None = None
    governor: Annotated[str, Field(pattern=r"^[a-z_]+$")] | None = Field(
        default=None, description="frequency governor of the processors, if they have one"
    )
    numa_balancing: bool | None = Field(
        default=None, description="whether the kernel moves memory between NUMA nodes automatically"
    )
    environment: dict[Variable, int | Text] = Field(
        default={},
        max_length=1000,
        description="environment variables of every login, such as OMP_NUM_THREADS",
    )
