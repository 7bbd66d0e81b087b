"""The programs sent to nodes, and their load at each level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gpuprov.probe.payload import Payload, pack

Level = Literal["quick", "full"]
LEVELS: tuple[Level, ...] = ("quick", "full")
MODULES = ("gpuprov.accept.node.main",)
ACROSS = ("gpuprov.accept.node.fabric",)
ALL_REDUCE = ("gpuprov.accept.node.allreduce",)
FRAMEWORK = ("gpuprov.accept.node.framework",)
FRAMEWORK_S = 600
KINDS = ("bf16", "fp16", "tf32", "fp8", "fp64")
"""Number formats; the load is held under the first."""

PLANS: dict[Level, dict[str, Any]] = {
    "quick": {
        "seconds": 240,  # at most, for all of it
        "memory": 0.6,
        "host": 0.8,  # for all GPUs
        "matrix": 1.0,
        "hold": 4.0,
        "pattern": [16, 0],  # GiB at most, seconds
        "pairs": 1.0,  # for all of them
        "collectives": [[1024], 0.8],  # MiB of each size, seconds for all
        "drive": 0.5,  # for each
        "dcgm": [1, 60],  # its own level, seconds at most
    },
    "full": {
        "seconds": 900,
        "memory": 3.0,
        "host": 8.0,
        "matrix": 4.0,
        "hold": 30.0,
        "pattern": [1024, 30],
        "pairs": 8.0,
        "collectives": [[16, 256, 1024, 4096], 12.0],
        "drive": 3.0,
        "dcgm": [2, 300],
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
    """Return the program that measures one node.

    Args:
        become, password: as `gpuprov.probe.payload.build`.
        folders: further folders of libcublasLt and libnccl.
        drained: load the node although a scheduler's program runs there.
        busy: load GPUs although programs use them; the rates are what these programs leave.
    """
    plan = {**PLANS[level], "level": level, "kinds": KINDS, "folders": list(folders)}
    plan |= {"drained": drained, "busy": busy}
    return pack(MODULES, plan, become=become, password=password)


def framework(python: str) -> Payload:
    """Return the program that measures the frameworks of one interpreter: PyTorch, JAX, TensorFlow."""
    return pack(FRAMEWORK, {"seconds": FRAMEWORK_S}, python=python)


def fabric(
    *,
    seconds: float,
    password: str | None = None,
    folders: Sequence[str] = (),
    drained: bool = False,
    gpus: Sequence[int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Payload:
    """Return the program of one node among several; it receives the rest as orders.

    Args:
        seconds: after which the program ends itself: `across.run.LONGEST_S`.
        password, folders, drained: as `program`.
        gpus: indices of GPUs that take part; all when None.
        environment: variables of NCCL.
    """
    plan = {"folders": list(folders), "drained": drained, "busy": False, "seconds": seconds}
    plan |= {"gpus": None if gpus is None else list(gpus), "environment": dict(environment or {})}
    return pack(ACROSS, plan, password=password)
