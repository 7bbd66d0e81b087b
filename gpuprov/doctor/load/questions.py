"""What rules of load are, and what they all ask of a sample: who works on which GPU, and how hard.

GPU utilisation only says that some kernel ran; power against the limit and the clock say how much. The
thresholds are this project's choice: they tell the loads apart that were seeded on two H200 and recorded
(`tests/recorded/doctor`), with room on both sides, and no vendor states such figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuprov.doctor.fault import Fault, Rule
from gpuprov.doctor.load.sample import GpuLoad, ProgramLoad, Sample

Judge = Callable[[Sample], Iterator[Fault]]
BUSY, HALF_BUSY, IDLE = 0.9, 0.6, 0.05
HARD, SOFT = 0.7, 0.5
"""Shares of the power limit: working hard; hardly working."""
FULL_CORE, STUCK = 0.85, 0.5
OWN = ("nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "dcgm", "nvidia-smi", "Xorg", "nvidia-cuda-mps")


@dataclass(frozen=True)
class LoadRule:
    """A judge of samples, and what it stands for."""

    rule: Rule
    judge: Judge


def load_rule(name: str, *rows: str, source: str = "stas-debug") -> Callable[[Judge], LoadRule]:
    """Make a rule of a judge; `verdict.ORDER` says when it speaks."""

    def enter(judge: Judge) -> LoadRule:
        return LoadRule(Rule(name, lambda _: iter(()), rows, tuple(source.split())), judge)

    return enter


def figures(gpu: GpuLoad) -> str:
    """`GPU 0 97% busy, 640 W (91% of its limit), clock 88% of maximum`."""
    power = "" if gpu.power_w is None else f", {gpu.power_w:.0f} W ({(gpu.power or 0):.0%} of its limit)"
    clock = "" if gpu.clock is None else f", clock {gpu.clock:.0%} of maximum"
    return f"GPU {gpu.index} {percent(gpu.busy)} busy{power}{clock}"


def percent(share: float | None) -> str:
    """`97%`."""
    return "not told" if share is None else f"{share:.0%}"


def workers(sample: Sample) -> list[ProgramLoad]:
    """Programs that hold GPUs themselves, without NVIDIA's own daemons."""
    return [each for each in sample.programs if each.pid == each.holder and not each.name.startswith(OWN)]


def used_gpus(sample: Sample) -> list[GpuLoad]:
    """GPUs that some program holds memory on, or that work."""
    held = {gpu for program in workers(sample) for gpu in program.gpus}
    return [
        gpu
        for gpu in sample.gpus
        if (gpu.index in held and (gpu.memory or 0) > 0.002) or (gpu.busy or 0) > IDLE
    ]


def starved_gpus(sample: Sample) -> list[GpuLoad]:
    """GPUs in use that are idle a good part of the time."""
    return [gpu for gpu in used_gpus(sample) if gpu.busy is not None and gpu.busy < HALF_BUSY]


def spinning_gpus(sample: Sample) -> list[GpuLoad]:
    """GPUs that look full and hardly work: as they do while NCCL waits."""
    return [
        gpu
        for gpu in used_gpus(sample)
        if (gpu.busy or 0) >= BUSY
        and gpu.power is not None
        and gpu.power < SOFT
        and (gpu.memory_busy or 0) < 0.3
    ]


def family_of(sample: Sample, holder: int) -> list[ProgramLoad]:
    """A program on GPUs and its children."""
    return [each for each in sample.programs if each.holder == holder]
