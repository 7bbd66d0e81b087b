"""Rules for limits of a GPU itself: reduced clocks, its memory, small kernels, or its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.doctor.fault import Fault, listed
from gpuprov.doctor.load.questions import (
    BUSY,
    HARD,
    IDLE,
    figures,
    load_rule,
    percent,
    spinning_gpus,
    used_gpus,
)
from gpuprov.doctor.load.sample import THROTTLED, Sample
from gpuprov.untrusted import shell


@load_rule("load.throttled", "U10")
def throttled(sample: Sample) -> Iterator[Fault]:
    """Report GPUs whose clocks heat or power reduced in more than 20 % of the readings, if they are busy for
    more than `IDLE`.
    """
    for gpu in sample.gpus:
        reasons = [name for bit, name in THROTTLED.items() if gpu.reasons_share.get(bit, 0) > 0.2]
        if reasons and (gpu.busy or 0) > IDLE:
            yield Fault(
                "degraded",
                f"GPU {gpu.index} is throttled ({listed(reasons)}): clock {percent(gpu.clock)} of its "
                f"maximum",
                (figures(gpu),),
                "heat, or the power that the board gets",
                (
                    shell("nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE"),
                    shell("fans, airflow, power supplies"),
                ),
            )


@load_rule("load.memory_bound", "U08")
def memory_bound(sample: Sample) -> Iterator[Fault]:
    """Report GPUs with `BUSY`, whose own memory is busy for more than 80 % at less than 90 % of their power,
    as a hint: this is no fault.
    """
    for gpu in sample.gpus:
        if (gpu.busy or 0) >= BUSY and (gpu.memory_busy or 0) > 0.8 and (gpu.power or 1) < 0.9:
            yield Fault(
                "hint",
                f"GPU {gpu.index} is memory-bound: memory busy {percent(gpu.memory_busy)} of the time, "
                f"{percent(gpu.power)} of its power",
                (figures(gpu),),
                "decoding, elementwise kernels: the machine has no fault",
                (shell("fusion (torch.compile), quantisation, larger batches"),),
            )


@load_rule("load.small_kernels", "U05")
def small_kernels(sample: Sample) -> Iterator[Fault]:
    """Report high utilisation at low power: small kernels, small batches; only if one GPU is in use."""
    spinning = spinning_gpus(sample)
    if len(used_gpus(sample)) > 1 and len(spinning) >= 1:
        return
    for gpu in spinning:
        yield Fault(
            "degraded",
            f"GPU {gpu.index} looks fully used ({percent(gpu.busy)}) at {percent(gpu.power)} of its power: "
            f"small kernels",
            (
                figures(gpu),
                f"memory used {percent(gpu.memory)}, memory busy {percent(gpu.memory_busy)} of the time",
            ),
            "kernels too small to fill it, or launched one by one; utilisation counts any kernel as full use",
            (shell("larger batches, CUDA graphs, torch.compile"),),
        )


@load_rule("load.compute_bound", "U08")
def compute_bound(sample: Sample) -> Iterator[Fault]:
    """Report as a hint that GPUs with `BUSY` at a power of at least `HARD` are the limit: no fault."""
    full = [gpu for gpu in sample.gpus if (gpu.busy or 0) >= BUSY and (gpu.power or 0) >= HARD]
    if full:
        yield Fault(
            "hint",
            f"compute-bound, as it should be: {figures(full[0])}"
            + (f", and {len(full) - 1} more alike" if len(full) > 1 else ""),
            tuple(map(figures, full)),
            "the GPU itself is the limit: no other part of the machine delays it",
            (shell("faster only by less work: lower precision, better kernels, more GPUs"),),
        )
