"""Whether GPUs of one host reach each other's memory.

Sources: NVIDIA's developer forum and NCCL's issues, where NVIDIA and users say it of GeForce boards; the
architecture's NVLink.
"""

from __future__ import annotations

from typing import Literal

from gpuprov.catalog.records import GpuModel
from gpuprov.catalog.version import Version

SOURCE = ("geforce-peer",)
_ADA, _TURING = Version("8.9"), Version("7.5")


def peer_to_peer(gpu: GpuModel) -> Literal["no", "bridge"] | None:
    """How GeForce boards of that model reach each other: not at all from Ada on, over an NVLink bridge alone
    on Turing and Ampere; None for all others, whose ways the topology tells."""
    if gpu.segment != "geforce" or gpu.compute_capability < _TURING:
        return None
    return "no" if gpu.compute_capability >= _ADA else "bridge"
