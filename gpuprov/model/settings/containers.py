"""Model of defaults for containers by Docker, and for pods by containerd."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpuprov.model.documents import Strict

Bytes = Annotated[int, Field(ge=0)] | Literal["unlimited"]


class Containers(Strict):
    """Defaults for containers; None leaves the engine's own.

    Sizes are Docker's alone: Kubernetes states them pod by pod. The rest is for Docker and for containerd.
    """

    shm_size: str | None = Field(
        default=None, pattern=r"^[1-9]\d*[kmg]?$", description="size of /dev/shm, such as 1g"
    )
    memlock: Bytes | None = Field(default=None, description="memory that may be locked, in bytes")
    stack: Bytes | None = Field(default=None, description="stack of a thread, in bytes")
    cgroup_driver: Literal["systemd", "cgroupfs"] | None = Field(
        default=None,
        description="who makes control groups; systemd where systemd is the node's init, and for containerd "
        "where nothing is stated",
    )
    cdi: bool | None = Field(
        default=None,
        description="GPUs by the Container Device Interface as well: --device nvidia.com/gpu=all",
    )
    default_runtime: Literal["runc", "nvidia"] | None = Field(
        default=None, description="containerd's runtime for pods whose RuntimeClass names none"
    )
