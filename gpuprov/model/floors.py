"""Model of a site's own floors for `gpuprov accept`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpuprov.model.documents import Strict

Rate = Annotated[float, Field(gt=0)]


class Floors(Strict):
    """Measurement → the site's own floor, which replaces the published one."""

    memory_read: Rate | None = Field(default=None, description="GB/s read by a kernel")
    memory_copy: Rate | None = Field(default=None, description="GB/s copied by the driver, both directions")
    h2d: Rate | None = Field(default=None, description="GB/s from the host's near memory")
    d2h: Rate | None = Field(default=None, description="GB/s to the host's near memory")
    h2d_far: Rate | None = Field(default=None, description="GB/s from the memory of another NUMA node")
    d2h_far: Rate | None = Field(default=None, description="GB/s to the memory of another NUMA node")
    bf16: Rate | None = Field(default=None, description="TFLOP/s at the power limit")
    bf16_burst: Rate | None = Field(default=None, description="TFLOP/s before the power limit takes effect")
    fp16: Rate | None = Field(default=None, description="TFLOP/s")
    tf32: Rate | None = Field(default=None, description="TFLOP/s")
    fp8: Rate | None = Field(default=None, description="TFLOP/s at the power limit")
    fp8_burst: Rate | None = Field(default=None, description="TFLOP/s before the power limit takes effect")
    fp64: Rate | None = Field(default=None, description="TFLOP/s")
    peer: Rate | None = Field(default=None, description="GB/s from one GPU of the node to another")
    all_reduce: Rate | None = Field(default=None, description="GB/s of bus bandwidth over the node's GPUs")
    all_gather: Rate | None = Field(default=None, description="GB/s of bus bandwidth over the node's GPUs")
    all_to_all: Rate | None = Field(default=None, description="GB/s of bus bandwidth over the node's GPUs")
    nvme_read: Rate | None = Field(default=None, description="GB/s read from one NVMe drive")
    nic: Rate | None = Field(default=None, description="Gb/s of each port that is up")
    between_nodes: Rate | None = Field(default=None, description="GB/s from one node to another")
    across_nodes: Rate | None = Field(default=None, description="GB/s of all-reduce over several nodes")

    def stated(self) -> dict[str, float]:
        """Return measurement → floor for the stated ones; {} without any."""
        return self.model_dump(exclude_none=True)


NAMES = tuple(Floors.model_fields)
