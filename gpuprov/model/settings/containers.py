"""Model of defaults for containers by Docker and Podman, and for pods by containerd."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpuprov.model.documents import Strict

Bytes = Annotated[int, Field(ge=0)] | Literal["unlimited"]


class Containers(Strict):
    """Defaults for containers; None keeps the engine's default.

    Sizes apply to Docker and Podman, because Kubernetes states them for each pod. The other values also apply
    to containerd.
    """

    shm_size: str | None = Field(
        default=None, pattern=r"^[1-9]\d*[kmg]?$", description="size of /dev/shm, such as 1g"
    )
    memlock: Bytes | None = Field(default=None, description="memory that may be locked, in bytes")
    stack: Bytes | None = Field(default=None, description="stack of a thread, in bytes")
    cgroup_driver: Literal["systemd", "cgroupfs"] | None = Field(
        default=None,
        description="manager of control groups; systemd if systemd is the node's init, and for containerd "
        "by default",
    )
    cdi: bool | None = Field(
        default=None,
        description="also offer GPUs by the Container Device Interface: --device nvidia.com/gpu=all; by "
        "default with Podman, which has no other way",
    )
    default_runtime: Literal["runc", "nvidia"] | None = Field(
        default=None, description="containerd's runtime for pods without a RuntimeClass"
    )
