"""Names of virtual GPUs (vGPU): shares of a GPU that a hypervisor gives to its guests."""

from __future__ import annotations

import re

VIRTUAL = re.compile(r"(?:GRID |NVIDIA )?[A-Z][\w-]{0,30}-\d{1,3}[ABCQ](?:ME|\d)?", re.ASCII)
"""`NVIDIA A10-24Q`, `GRID T4-4C`, `NVIDIA A100-1-5CME`: board, memory in GB and kind of licence."""


def is_virtual(name: str) -> bool:
    """Return whether a GPU's name, as nvidia-smi prints it, is that of a virtual GPU."""
    return VIRTUAL.fullmatch(name.strip()) is not None
