"""Models of scratch file systems and network storage clients."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpuprov.model.documents import Strict

StorageClient = Literal["nfs", "ceph", "lustre"]


class NfsOptions(Strict):
    """Options of NFS clients."""

    slots: int | None = Field(
        default=None,
        ge=2,
        le=65536,
        description="requests to a server at one time, over each connection",
    )


class LustreOptions(Strict):
    """Options of Lustre clients."""

    networks: str | None = Field(
        default=None,
        pattern=r"^(?:tcp|o2ib)\d*\([\w.:-]+(?:,[\w.:-]+)*\)(?:,(?:tcp|o2ib)\d*\([\w.:-]+(?:,[\w.:-]+)*\))*$",
        description="networks of LNet with their interfaces",
    )


class ClientOptions(Strict):
    """Options of the modules of network file systems, from their next load on; None keeps the defaults."""

    nfs: NfsOptions = NfsOptions()
    lustre: LustreOptions = LustreOptions()


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
