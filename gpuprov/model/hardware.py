"""Models of a server's hardware, as profiles, fleets and the lock state it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpuprov.model.documents import Strict

NicKind = Literal["ethernet", "infiniband", "roce", "rdma", "efa"]


class GpuHardware(Strict):
    """The GPUs of one server."""

    model: str | None = Field(
        default=None, description="a GPU of the catalog: its name, nvidia-smi's name, or a PCI id (10de:2335)"
    )
    count: int | None = Field(default=None, ge=0, le=32)
    nvlink: bool | None = Field(default=None, description="whether every pair of GPUs is connected by NVLink")
    nvswitches: int | None = Field(default=None, ge=0, le=32, description="NVSwitches on the PCI bus")


class NvmeHardware(Strict):
    """Local NVMe drives."""

    count: int | None = Field(default=None, ge=0, le=1024, description="minimum number of drives")
    total_tb: float | None = Field(
        default=None, ge=0, le=1_000_000, description="minimum total capacity in 10^12 B"
    )


class NicHardware(Strict):
    """Network ports of one kind and speed; `rdma` is InfiniBand or RoCE."""

    kind: NicKind
    speed_gbits: int = Field(gt=0, le=3200, description="minimum speed of one port in Gb/s")
    count: int = Field(default=1, ge=1, le=64, description="minimum number of ports")

    def __str__(self) -> str:
        """Return `8 x 400 Gb/s RDMA`."""
        words = {"ethernet": "Ethernet", "infiniband": "InfiniBand", "roce": "RoCE", "rdma": "RDMA"}
        return f"{self.count} x {self.speed_gbits} Gb/s {words.get(self.kind, 'EFA')}"


class HardwareProfile(Strict):
    """The hardware of a server; values that are not stated are not checked."""

    gpu: GpuHardware = GpuHardware()
    cpu_cores: int | None = Field(
        default=None, ge=1, le=65_536, description="minimum number of physical cores"
    )
    memory_gib: int | None = Field(default=None, ge=1, le=1 << 20, description="installed memory in GiB")
    nvme: NvmeHardware = NvmeHardware()
    nics: list[NicHardware] = Field(
        default=[], max_length=16, description="network ports for data, without management ports"
    )
