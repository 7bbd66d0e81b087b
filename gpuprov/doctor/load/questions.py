"""Definition of load rules, and their common queries of a sample.

GPU utilisation only shows that some kernel ran; power against the limit and the clock show the load. The
thresholds are this project's choice: they separate the loads generated on two H200 and recorded
(`tests/recorded/doctor`), with margin on both sides; no vendor publishes such values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuprov.doctor.fault import Fault, Rule
from gpuprov.doctor.load.sample import GpuLoad, ProgramLoad, Sample

Judge = Callable[[Sample], Iterator[Fault]]
BUSY, HALF_BUSY, IDLE = 0.9, 0.6, 0.05
HARD, SOFT = 0.7, 0.5
"""Shares of the power limit: high load; low load."""
FULL_CORE, STUCK = 0.85, 0.5
OWN = ("nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "dcgm", "nvidia-smi", "Xorg", "nvidia-cuda-mps")


@dataclass(frozen=True)
class LoadRule:
    """A function that judges samples, and its rule."""

    rule: Rule
    judge: Judge


def load_rule(name: str, *rows: str, source: str = "stas-debug") -> Callable[[Judge], LoadRule]:
    """Make a load rule from a function; `verdict.ORDER` sets the order of rules."""

    def enter(judge: Judge) -> LoadRule:
        return LoadRule(Rule(name, lambda _: iter(()), rows, tuple(source.split())), judge)

    return enter


def figures(gpu: GpuLoad) -> str:
    """Return `GPU 0 97% busy, 640 W (91% of its limit), clock 88% of maximum`, without unknown values."""
    power = "" if gpu.power_w is None else f", {gpu.power_w:.0f} W ({(gpu.power or 0):.0%} of its limit)"
    clock = "" if gpu.clock is None else f", clock {gpu.clock:.0%} of maximum"
    return f"GPU {gpu.index} {percent(gpu.busy)} busy{power}{clock}"


def percent(share: float | None) -> str:
    """Return a share as `97%`; `unknown` for None."""
    return "unknown" if share is None else f"{share:.0%}"


def workers(sample: Sample) -> list[ProgramLoad]:
    """Return programs that use GPUs themselves, without NVIDIA's own daemons."""
    return [each for each in sample.programs if each.pid == each.holder and not each.name.startswith(OWN)]


def used_gpus(sample: Sample) -> list[GpuLoad]:
    """Return GPUs that are busy for more than `IDLE`, or hold a program's memory."""
    held = {gpu for program in workers(sample) for gpu in program.gpus}
    return [
        gpu
        for gpu in sample.gpus
        if (gpu.index in held and (gpu.memory or 0) > 0.002) or (gpu.busy or 0) > IDLE
    ]


def starved_gpus(sample: Sample) -> list[GpuLoad]:
    """Return GPUs in use that are busy for less than `HALF_BUSY` of the time."""
    return [gpu for gpu in used_gpus(sample) if gpu.busy is not None and gpu.busy < HALF_BUSY]


def spinning_gpus(sample: Sample) -> list[GpuLoad]:
    """Return GPUs with a utilisation of at least `BUSY` at a power below `SOFT` with little memory traffic,
    as while NCCL waits.
    """
    return [
        gpu
        for gpu in used_gpus(sample)
        if (gpu.busy or 0) >= BUSY
        and gpu.power is not None
        and gpu.power < SOFT
        and (gpu.memory_busy or 0) < 0.3
    ]


def family_of(sample: Sample, holder: int) -> list[ProgramLoad]:
    """Return the program on GPUs with this PID (`holder`) and its children."""
    return [each for each in sample.programs if each.holder == holder]
