"""Models of scratch file systems and network storage clients."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpuprov.model.documents import Strict

StorageClient = Literal["nfs", "ceph", "lustre"]


class Scratch(Strict):
    """A device that is formatted once, if it is empty."""

    device: str = Field(
        pattern=r"^/dev/[\w./:*?\[\]+-]+$",
        description="path of a whole device, preferably in /dev/disk/by-id; a pattern must match one device",
    )
    mount: str = Field(pattern=r"^/[\w-]+(/[\w.-]+)*$", description="mount point")
    filesystem: Literal["ext4", "xfs"] = "ext4"
    read_ahead_kib: int | None = Field(
        default=None,
        ge=0,
        le=1_048_576,
        multiple_of=4,
        description="read-ahead in KiB; None keeps the kernel's default",
    )
