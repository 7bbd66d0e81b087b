"""Types of the settings of GPUDirect RDMA."""

from __future__ import annotations

from typing import Literal

DMA_BUF, PEERMEM = "dma-buf", "nvidia-peermem"
PeerMemoryWay = Literal["auto", "dma-buf", "nvidia-peermem"]
"""How network cards read a GPU's memory: by the kernel's DMA-BUF, or by the driver's module."""
