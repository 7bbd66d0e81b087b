"""Properties of a node for exports, and lists of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuprov.errors import NodeFailed


@dataclass(frozen=True)
class Slice:
    """One MIG instance as Slurm and others see it: a separate device.

    Attributes:
        gpu: index of its GPU in nvidia-smi.
        profile: the instance's name, `3g.40gb`.
        files: its device files: the GPU's, the instance's and its compute instance's.
    """

    gpu: int
    profile: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        model: the GPUs' name as the driver prints it, `NVIDIA H200`.
        cpus: number of logical processors; 0 if unknown, as for the counts below.
        memory_mib: total memory.
        gpu_memory_mib: memory of one GPU.
        gpu_cores: for each GPU its nearest cores, as Slurm counts them (`slurm_cores`); may be empty.
        gpu_minors: for each GPU N of its device file /dev/nvidiaN; empty if unknown, then N is its index.
        partitioned: indexes of the GPUs with MIG on; None if the lock wants instances and the node was not
            asked.
        slices: MIG instances of these GPUs.
        nvml: whether Slurm's plugin for NVML is installed; None if unknown.
        labels: software by name and version, from the lock: `driver` → 580.95.05, `cuda` → 13.0.2.
        places: the fleet's place of the node by kind: `rack` → b7.
        health_s: seconds between two runs of its health check; 0 without one.
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
    gpu_minors: tuple[int, ...] = ()
    partitioned: frozenset[int] | None = frozenset()
    slices: tuple[Slice, ...] = ()
    nvml: bool | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    health_s: int = 0

    @property
    def has_unknown_devices(self) -> bool:
        """Whether MIG is on, or wanted by the lock, and the instances are not known."""
        return self.partitioned is None or bool(self.partitioned - {each.gpu for each in self.slices})


PROCESSORS = 8192
"""Highest number of logical processors in Linux: NR_CPUS_RANGE_END in arch/x86/Kconfig."""
LISTED = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def numbers(text: str) -> list[int]:
    """Return the numbers in a node's list of logical processors: `0-2,8` → 0, 1, 2, 8; [] for "".

    Raises:
        NodeFailed: not such a list, or more processors than `PROCESSORS`.
    """
    found: list[int] = []
    for part in filter(None, text.split(",")):
        parsed = LISTED.fullmatch(part.strip())
        first, last = (int(parsed[1]), int(parsed[2] or parsed[1])) if parsed else (0, -1)
        if not first <= last < PROCESSORS or len(found) + last - first >= PROCESSORS:
            raise NodeFailed(
                f"the list of processors is {text[:60]!r}",
                expected=f"at most {PROCESSORS} numbers and ranges, as 0-31,64-95",
            )
        found += range(first, last + 1)
    return found


def ranges(values: Iterable[int]) -> str:
    """Return numbers as ranges in ascending order, each once: 0, 1, 2, 8 → `0-2,8`; "" without numbers."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def short_model(model: str) -> str:
    """Return a GPU model as one lower-case word without brand: `NVIDIA A100-SXM4-80GB` → `a100-sxm4-80gb`."""
    words = re.sub(r"^(NVIDIA|Tesla|GeForce|Quadro)\s+", "", model.strip(), flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9._-]+", "_", words.lower()).strip("_-.") or "gpu"
