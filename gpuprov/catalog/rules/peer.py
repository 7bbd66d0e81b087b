"""Rule of peer access between GPUs of one host.

Sources: NVIDIA's developer forum and NCCL's issues, with statements of NVIDIA and users about GeForce boards;
the architecture's NVLink.
"""

from __future__ import annotations

from typing import Literal

from gpuprov.catalog.records import GpuModel
from gpuprov.catalog.version import Version

SOURCE = ("geforce-peer",)
_ADA, _TURING = Version("8.9"), Version("7.5")


def peer_to_peer(gpu: GpuModel) -> Literal["no", "bridge"] | None:
    """Return how GeForce boards of that model access each other's memory.

    Not at all from Ada on, only over an NVLink bridge on Turing and Ampere; None for all others, where the
    topology decides.
    """
    if gpu.segment != "geforce" or gpu.compute_capability < _TURING:
        return None
    return "no" if gpu.compute_capability >= _ADA else "bridge"
