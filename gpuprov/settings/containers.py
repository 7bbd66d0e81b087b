"""What Docker gives a container that does not ask for anything else."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpuprov.documents import Strict

Bytes = Annotated[int, Field(ge=0)] | Literal["unlimited"]


class Containers(Strict):
    """Docker's defaults for containers; None leaves Docker's own."""

    shm_size: str | None = Field(
        default=None, pattern=r"^[1-9]\d*[kmg]?$", description="size of /dev/shm, such as 1g"
    )
    memlock: Bytes | None = Field(default=None, description="memory that may be locked, in bytes")
    stack: Bytes | None = Field(default=None, description="stack of a thread, in bytes")
    cgroup_driver: Literal["systemd", "cgroupfs"] | None = Field(
        default=None, description="who makes control groups; systemd where systemd is the node's init"
    )
    cdi: bool | None = Field(
        default=None,
        description="GPUs by the Container Device Interface as well: --device nvidia.com/gpu=all",
    )
