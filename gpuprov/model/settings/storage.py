"""Models of scratch file systems and network storage clients."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpuprov.model.documents import Strict

StorageClient = Literal["nfs", "ceph", "lustre"]


class Scratch(Strict):
    """One device, made into a file system once, while it is empty."""

    device: str = Field(
        pattern=r"^/dev/[\w./:*?\[\]+-]+$",
        description="path of a whole device, best below /dev/disk/by-id; a pattern has to match one device",
    )
    mount: str = Field(pattern=r"^/[\w-]+(/[\w.-]+)*$", description="where it is mounted")
    filesystem: Literal["ext4", "xfs"] = "ext4"
    read_ahead_kib: int | None = Field(
        default=None,
        ge=0,
        le=1_048_576,
        multiple_of=4,
        description="what is read ahead; None is the kernel's",
    )
