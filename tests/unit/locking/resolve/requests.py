"""Short names for requests in tests of the resolver."""

from __future__ import annotations

from typing import Any

from gpuprov.catalog import load
from gpuprov.locking.resolve import Answer, Request, resolve

V100 = "Tesla V100 SXM2 16GB"
A100 = "A100 PCIe 80GB"
H100_BOARD = ("8x H100 SXM5 80GB",)
H200_BOARD = ("8x NVIDIA H200",)
FED_BACK = (
    "driver",
    "cuda",
    "cudnn",
    "nccl",
    "container_toolkit",
    "fabricmanager",
    "module",
    "compat",
    "repository",
)
"""Fields of an answer that a request may state."""


def answer(gpu: str | tuple[str, ...], os: str = "ubuntu22.04", **stated: Any) -> Answer:
    """Return the resolver's answer for one machine."""
    gpus = (gpu,) if isinstance(gpu, str) else gpu
    return resolve(Request(gpus=gpus, os=os, **stated), load())


def rules(findings: tuple[Any, ...]) -> set[str]:
    """Return the names of the rules behind findings."""
    return {finding.rule for finding in findings}
