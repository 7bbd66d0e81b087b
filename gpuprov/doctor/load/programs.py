"""Rules for programs on GPUs: stragglers, hangs, idle programs, sharing."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.doctor.fault import Fault, listed
from gpuprov.doctor.load.questions import (
    BUSY,
    FULL_CORE,
    IDLE,
    SOFT,
    STUCK,
    family_of,
    figures,
    load_rule,
    percent,
    spinning_gpus,
    used_gpus,
    workers,
)
from gpuprov.doctor.load.sample import ProgramLoad, Sample
from gpuprov.untrusted import shell


@load_rule("load.straggler", "U06", "U07")
def straggler(sample: Sample) -> Iterator[Fault]:
    """Report GPUs of a job that wait at low power (`spinning_gpus`) for one that lags, or that all wait for
    each other.
    """
    spinning, used = spinning_gpus(sample), used_gpus(sample)
    if not spinning or len(used) < 2:
        return
    waiting = {gpu.index for gpu in spinning}
    others = [gpu for gpu in used if gpu.index not in waiting]
    ranks = sorted(workers(sample), key=lambda each: each.pid)
    if others and all((gpu.busy or 0) < BUSY or (gpu.power or 0) >= SOFT for gpu in others):
        late = min(others, key=lambda gpu: gpu.busy or 0)
        mine = [each for each in ranks if late.index in each.gpus and len(each.gpus) == 1] or [
            each for each in ranks if late.index in each.gpus
        ]
        doing = _doing(sample, mine[0]) if mine else "its program is not visible"
        yield Fault(
            "degraded",
            f"{_those(waiting)} in a collective for GPU {late.index}: "
            f"{percent(late.busy)} busy there, {doing}",
            tuple(figures(gpu) for gpu in used),
            "a collective ends when its slowest rank arrives; the others spin at full utilisation and "
            "low power",
            (
                shell("check that rank: {}", doing),
                shell("py-spy dump --pid PID of that rank; give every rank the same work"),
            ),
        )
    elif not others and len(spinning) == len(used):
        quiet = all((gpu.traffic or 0) < 0.05 for gpu in spinning)
        lazy = min(ranks, key=lambda each: each.cores, default=None)
        yield Fault(
            "degraded",
            f"all {len(spinning)} GPUs look fully used at {percent(max(gpu.power or 0 for gpu in spinning))} "
            f"of their power: "
            "they wait for each other" + (" or for another node" if quiet else ", or run very small kernels"),
            tuple(figures(gpu) for gpu in spinning),
            "NCCL spins while it waits; a rank elsewhere is late, or hangs",
            (
                shell("compare the ranks: py-spy dump --pid PID; NCCL_DEBUG=INFO and gpuprov nccl"),
                *(
                    [shell("the quietest rank here: {} ({} cores)", lazy.pid, f"{lazy.cores:.1f}")]
                    if lazy
                    else []
                ),
            ),
        )


def _those(gpus: set[int]) -> str:
    """Return `GPU 0 waits` or `GPUs 0, 1 wait`."""
    names = listed([str(each) for each in sorted(gpus)], 8)
    return f"GPU {names} waits" if len(gpus) == 1 else f"GPUs {names} wait"


def _doing(sample: Sample, program: ProgramLoad) -> str:
    """Return as text whether a process waits in the kernel (more than `STUCK`), fills a core (`FULL_CORE`),
    sleeps, or how many cores it uses.
    """
    family = family_of(sample, program.holder)
    cores = sum(each.cores for each in family)
    if program.asleep > STUCK:
        return f"process {program.pid} waits in the kernel ({program.waits or 'disk'})"
    if program.busiest >= FULL_CORE:
        return f"process {program.pid} has one core at {program.busiest:.0%} ({program.busiest_name})"
    if cores < 0.2:
        return f"process {program.pid} sleeps ({cores:.1f} cores)"
    return f"process {program.pid} uses {cores:.1f} cores"


@load_rule("load.hang", "U12")
def hang(sample: Sample) -> Iterator[Fault]:
    """Report programs on GPUs that sleep in the kernel in more than 95 % of the readings and use less than 2
    % of a processor.
    """
    for program in workers(sample):
        if program.asleep > 0.95 and program.cores < 0.02:
            yield Fault(
                "broken",
                f"{program.name} ({program.pid}) has slept in the kernel for {sample.seconds:.0f} s "
                f"({program.waits})",
                (
                    f"/proc/{program.pid}/stat: D in every reading",
                    f"/proc/{program.pid}/wchan: {program.waits}",
                ),
                "storage, a device or the driver does not answer",
                (shell("sudo cat /proc/{}/stack", program.pid),),
            )


@load_rule("load.idle_holder", "U11", source="project")
def idle_holder(sample: Sample) -> Iterator[Fault]:
    """Report programs that hold more than 1 GiB on GPUs below `IDLE` and use less than 2 % of a processor;
    not ranks of a job (WORLD_SIZE).
    """
    for program in workers(sample):
        mine = [gpu for gpu in sample.gpus if gpu.index in program.gpus]
        if "WORLD_SIZE" in program.variables:
            continue  # a rank that waits for others is reported by the straggler's rule
        quiet = mine and all((gpu.busy or 0) < IDLE for gpu in mine)
        held = sum(gpu.used_mib or 0 for gpu in mine)
        if quiet and held > 1024 and sum(each.cores for each in family_of(sample, program.pid)) < 0.02:
            yield Fault(
                "hint",
                f"{program.name} ({program.pid}) holds {held:.0f} MiB on GPU "
                f"{listed([str(each) for each in program.gpus], 8)} and does nothing",
                tuple(map(figures, mine)),
                "a notebook, a server without load, or a job that waits",
                (shell("end it, or share the GPU: ps -fp {}", program.pid),),
            )


@load_rule("load.one_of_several", "U13", source="project")
def one_of_several(sample: Sample) -> Iterator[Fault]:
    """Report a working program that has several GPUs open, one of them busy for more than 20 % and the others
    less than `IDLE`.
    """
    for program in workers(sample):
        mine = [gpu for gpu in sample.gpus if gpu.index in program.gpus]
        working = [gpu for gpu in mine if (gpu.busy or 0) > 0.2]
        if (
            program.cores > 0.2
            and len(mine) > 1
            and len(working) == 1
            and all((g.busy or 0) < IDLE for g in mine if g not in working)
        ):
            yield Fault(
                "risk",
                f"{program.name} ({program.pid}) has {len(mine)} GPUs open and works only on "
                f"GPU {working[0].index}",
                tuple(map(figures, mine)),
                "it was started as one process, or its launcher does not use the others",
                (
                    shell(
                        "torchrun --nproc-per-node, or CUDA_VISIBLE_DEVICES for one; gpuprov "
                        "launch writes such lines"
                    ),
                ),
            )


@load_rule("load.shared", "U14", source="project")
def shared(sample: Sample) -> Iterator[Fault]:
    """Report several working programs on one busy GPU, if each has only that GPU."""
    for gpu in sample.gpus:
        there = [each for each in workers(sample) if gpu.index in each.gpus and each.cores > 0.05]
        single = [each for each in there if len(each.gpus) == 1]
        if len(single) > 1 and (gpu.busy or 0) > 0.2:
            yield Fault(
                "risk",
                f"{len(single)} programs share GPU {gpu.index}: "
                + listed([f"{each.name} ({each.pid})" for each in single]),
                (figures(gpu),),
                "they take turns; each is slower than alone",
                (shell("give each its own GPU, or MPS or MIG if sharing is intended"),),
            )
