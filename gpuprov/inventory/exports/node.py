"""What an export has to know of a node."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        model: the GPUs' name as the driver prints it, `NVIDIA H200`.
        cpus: logical processors; 0 where not known, as for the counts below.
        memory_mib: all of it.
        gpu_memory_mib: of one GPU.
        gpu_cores: for each GPU the cores nearest to it, as Slurm counts them (`slurm_cores`); may be empty.
    """

    name: str
    address: str
    gpus: int
    model: str
    cpus: int = 0
    memory_mib: int = 0
    sockets: int = 0
    cores_per_socket: int = 0
    threads_per_core: int = 0
    gpu_memory_mib: int = 0
    gpu_cores: tuple[str, ...] = ()


def numbers(text: str) -> list[int]:
    """`0-2,8` → 0, 1, 2, 8."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def ranges(values: Iterable[int]) -> str:
    """0, 1, 2, 8 → `0-2,8`."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def short_model(model: str) -> str:
    """`NVIDIA A100-SXM4-80GB` → `a100-sxm4-80gb`: lower case, without the maker, fit for a word."""
    words = re.sub(r"^(NVIDIA|Tesla|GeForce|Quadro)\s+", "", model.strip(), flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9._-]+", "_", words.lower()).strip("_-.") or "gpu"
