"""The checks: every rule asked of one stack, each answering in a person's words, with its source.

A check is a generator over (level, finding); none stops another, so a refusal names every rule that is
violated.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.resolve.case import Case, Draft
from gpuprov.resolve.checks import cuda, driver, fabric, libraries, system
from gpuprov.resolve.checks.said import Said

CHECKS = (*system.CHECKS, *driver.CHECKS, *cuda.CHECKS, *libraries.CHECKS, *fabric.CHECKS)

DRIVER_INDEPENDENT = frozenset(
    {
        "os-served",
        "superchip-arch",
        "gpus-together",
        "gpu-cuda",
        "cuda-published",
        "cuda-on-os",
        "cudnn-build",
        "cudnn-gpu",
        "nccl-cuda-major",
        "nccl-build",
        "nccl-gpu",
        "framework-gpu",
        "framework-build",
        "fabric-manager-missing",
        "fabric-manager-needless",
        "docker-gpus",
        "container-toolkit-cgroup2",
        "forward-compat-gpu",
    }
)
"""Rules whose violation no other driver mends: where only these are violated, no further driver is tried."""


def judge(case: Case, draft: Draft) -> Iterator[Said]:
    """Everything the rules say about a complete draft, in the order of the stack: system, driver, CUDA,
    libraries."""
    for check in CHECKS:
        yield from check(case, draft)
