"""What is sent to a node, and how much it does there at each level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from gpuprov.probe.payload import Payload, pack

Level = Literal["quick", "full"]
LEVELS: tuple[Level, ...] = ("quick", "full")
MODULES = (
    *(f"gpuprov.probe.node.{name}" for name in ("base", "gpu_sample", "kernel_log", "main")),
    *(
        f"gpuprov.accept.node.{name}"
        for name in ("kernels", "cuda", "memory", "matrix", "between", "watch", "workers", "main")
    ),
)
KINDS = ("bf16", "fp16", "tf32", "fp8", "fp64")
"""The first is the one under which the load is held."""

PLANS: dict[Level, dict[str, Any]] = {
    "quick": {
        "seconds": 240,  # at most, for all of it
        "memory": 0.6,
        "host": 0.8,
        "matrix": 1.0,
        "hold": 4.0,
        "pattern": [16, 0],  # GiB at most, seconds
        "pairs": 1.5,
        "collectives": [[256, 1024], 1.5],  # MiB of each size, seconds for all
    },
    "full": {
        "seconds": 900,
        "memory": 3.0,
        "host": 4.0,
        "matrix": 4.0,
        "hold": 30.0,
        "pattern": [1024, 30],
        "pairs": 8.0,
        "collectives": [[16, 256, 1024, 4096], 12.0],
    },
}
"""Level → seconds of load for each measurement."""


def program(
    level: Level,
    *,
    become: bool = True,
    password: str | None = None,
    folders: Sequence[str] = (),
    drained: bool = False,
    busy: bool = False,
) -> Payload:
    """The program for one node.

    Args:
        become, password: as `gpuprov.probe.payload.build`.
        folders: where else libcublasLt and libnccl may be.
        drained: load the node although a scheduler's program runs there.
        busy: load GPUs although programs compute on them; what is measured then is what they leave.
    """
    plan = {**PLANS[level], "level": level, "kinds": KINDS, "folders": list(folders)}
    plan |= {"drained": drained, "busy": busy}
    return pack(MODULES, plan, become=become, password=password)
