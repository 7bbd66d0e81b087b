"""Where the bottleneck is, told from one sample: rules in the order in which one explains the next.

GPU utilisation only says that some kernel ran; power against the limit and the clock say how much. Thresholds
are proposed here; they were seen to tell the seeded loads of `scripts/bench load` apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gpuprov.doctor.fault import Fault, Rule, listed
from gpuprov.doctor.sample import GpuLoad, ProgramLoad, Sample

Judge = Callable[[Sample], Iterator[Fault]]
BUSY, HALF_BUSY, IDLE = 0.9, 0.6, 0.05
HARD, SOFT = 0.7, 0.5
"""Shares of the power limit: working hard; hardly working."""
FULL_CORE, STUCK, WAITS_FOR_DISKS = 0.85, 0.5, 0.2
THROTTLED = {
    8: "HW slowdown",
    16: "sync boost",
    32: "SW thermal slowdown",
    64: "HW thermal slowdown",
    128: "HW power brake",
}
"""Bits of NVML's clocks event reasons that take speed away; 1 idle, 2 set clocks, 4 power cap do not "
"count."""
LOAD_RULES: dict[str, tuple[Rule, Judge]] = {}
OWN = ("nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "dcgm", "nvidia-smi", "Xorg", "nvidia-cuda-mps")


def load_rule(name: str, *rows: str, source: str = "stas-debug") -> Callable[[Judge], Judge]:
    """Enter a judge into the table, in order."""

    def enter(judge: Judge) -> Judge:
        LOAD_RULES[name] = (Rule(name, lambda _: iter(()), rows, tuple(source.split())), judge)
        return judge

    return enter


def judge_load(raw: Any) -> list[Fault]:
    """The verdict first, then whatever else was seen. One sentence with its figures each."""
    from gpuprov.doctor.judge import titles

    sample = Sample(raw)
    found: list[Fault] = []
    for name, (rule, judge) in LOAD_RULES.items():
        found += [replace(fault, rule=name, source=titles(rule.source)) for fault in judge(sample)]
    return found or [_nothing(sample)]


def _nothing(sample: Sample) -> Fault:
    figures = tuple(map(_figures, sample.gpus))
    text = "nobody uses a GPU" if not _workers(sample) else "no bottleneck stands out"
    return Fault(
        "hint",
        f"{text}: {listed(list(figures), 2)}",
        figures,
        "as sampled",
        ("sample longer",),
        rule="load.none",
    )


def _figures(gpu: GpuLoad) -> str:
    power = "" if gpu.power_w is None else f", {gpu.power_w:.0f} W ({(gpu.power or 0):.0%} of its limit)"
    clock = "" if gpu.clock is None else f", clock {gpu.clock:.0%} of maximum"
    return f"GPU {gpu.index} {_percent(gpu.busy)} busy{power}{clock}"


def _percent(share: float | None) -> str:
    return "not told" if share is None else f"{share:.0%}"


def _workers(sample: Sample) -> list[ProgramLoad]:
    """Programs that hold GPUs themselves, without NVIDIA's own daemons."""
    return [each for each in sample.programs if each.pid == each.holder and not each.name.startswith(OWN)]


def _used(sample: Sample) -> list[GpuLoad]:
    """GPUs that some program holds memory on, or that work."""
    held = {gpu for program in _workers(sample) for gpu in program.gpus}
    return [
        gpu
        for gpu in sample.gpus
        if (gpu.index in held and (gpu.memory or 0) > 0.002) or (gpu.busy or 0) > IDLE
    ]


def _starved(sample: Sample) -> list[GpuLoad]:
    """GPUs in use that are idle a good part of the time."""
    return [gpu for gpu in _used(sample) if gpu.busy is not None and gpu.busy < HALF_BUSY]


def _spinning(sample: Sample) -> list[GpuLoad]:
    """GPUs that look full and hardly work: as they do while NCCL waits."""
    return [
        gpu
        for gpu in _used(sample)
        if (gpu.busy or 0) >= BUSY
        and gpu.power is not None
        and gpu.power < SOFT
        and (gpu.memory_busy or 0) < 0.3
    ]


def _family(sample: Sample, holder: int) -> list[ProgramLoad]:
    return [each for each in sample.programs if each.holder == holder]


@load_rule("load.throttled", "U10")
def throttled(sample: Sample) -> Iterator[Fault]:
    """Clocks taken away by heat or power while it works."""
    for gpu in sample.gpus:
        reasons = [name for bit, name in THROTTLED.items() if gpu.reasons_share.get(bit, 0) > 0.2]
        if reasons and (gpu.busy or 0) > IDLE:
            yield Fault(
                "degraded",
                f"GPU {gpu.index} is throttled ({listed(reasons)}): clock {_percent(gpu.clock)} of its "
                f"maximum",
                (_figures(gpu),),
                "heat, or the power that the board gets",
                ("nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE", "fans, airflow, power supplies"),
            )


@load_rule("load.straggler", "U06", "U07")
def straggler(sample: Sample) -> Iterator[Fault]:
    """Some GPUs of a job spin at low power while one lags: the others wait for it."""
    spinning, used = _spinning(sample), _used(sample)
    if not spinning or len(used) < 2:
        return
    waiting = {gpu.index for gpu in spinning}
    others = [gpu for gpu in used if gpu.index not in waiting]
    ranks = sorted(_workers(sample), key=lambda each: each.pid)
    if others and all((gpu.busy or 0) < BUSY or (gpu.power or 0) >= SOFT for gpu in others):
        late = min(others, key=lambda gpu: gpu.busy or 0)
        mine = [each for each in ranks if late.index in each.gpus and len(each.gpus) == 1] or [
            each for each in ranks if late.index in each.gpus
        ]
        doing = _doing(sample, mine[0]) if mine else "its program is not seen"
        yield Fault(
            "degraded",
            f"{_those(waiting)} in a collective for GPU {late.index}: "
            f"{_percent(late.busy)} busy there, {doing}",
            tuple(_figures(gpu) for gpu in used),
            "a collective ends when its slowest rank arrives; the others spin at full utilisation and "
            "low power",
            (
                f"look at that rank: {doing}",
                "py-spy dump --pid PID of that rank; give every rank the same work",
            ),
        )
    elif not others and len(spinning) == len(used):
        quiet = all((gpu.traffic or 0) < 0.05 for gpu in spinning)
        lazy = min(ranks, key=lambda each: each.cores, default=None)
        yield Fault(
            "degraded",
            f"all {len(spinning)} GPUs look full at {_percent(max(gpu.power or 0 for gpu in spinning))} "
            f"of their power: "
            "they wait for each other" + (" or for another node" if quiet else ", or run very small kernels"),
            tuple(_figures(gpu) for gpu in spinning),
            "NCCL spins while it waits; a rank elsewhere is late, or hangs",
            (
                "compare the ranks: py-spy dump --pid PID; NCCL_DEBUG=INFO and gpuprov nccl",
                *([f"the quietest rank here: {lazy.pid} ({lazy.cores:.1f} cores)"] if lazy else []),
            ),
        )


def _those(gpus: set[int]) -> str:
    names = listed([str(each) for each in sorted(gpus)], 8)
    return f"GPU {names} waits" if len(gpus) == 1 else f"GPUs {names} wait"


def _doing(sample: Sample, program: ProgramLoad) -> str:
    family = _family(sample, program.holder)
    cores = sum(each.cores for each in family)
    if program.asleep > STUCK:
        return f"process {program.pid} waits in the kernel ({program.waits or 'disk'})"
    if program.busiest >= FULL_CORE:
        return f"process {program.pid} has one core at {program.busiest:.0%} ({program.busiest_name})"
    if cores < 0.2:
        return f"process {program.pid} sleeps ({cores:.1f} cores)"
    return f"process {program.pid} uses {cores:.1f} cores"


@load_rule("load.swap", "U04")
def swapping(sample: Sample) -> Iterator[Fault]:
    """Swapping starves the GPUs."""
    pages = sample.swapped()
    if pages > 50 and _starved(sample):
        yield Fault(
            "degraded",
            f"the host swaps {pages:.0f} pages a second, and GPUs wait: {_figures(_starved(sample)[0])}",
            (f"/proc/vmstat: {pages:.0f} pages a second",),
            "memory is short",
            ("fewer workers, smaller caches, more memory",),
        )


@load_rule("load.storage", "U03")
def storage(sample: Sample) -> Iterator[Fault]:
    """Programs of starved GPUs wait for disks."""
    starved = _starved(sample)
    if not starved:
        return
    waiting = [each for each in sample.programs if each.asleep >= 0.2]
    pressed, iowait = sample.pressure("io"), sample.iowait
    disk = max(sample.disks.items(), key=lambda each: each[1][0], default=("none", (0.0, 0.0)))
    if not ((waiting and pressed > 0.2) or iowait > WAITS_FOR_DISKS or (pressed > 0.5 and disk[1][0] > 0.5)):
        return
    who = (
        f"; asleep for it: {listed([f'{each.name} ({each.pid})' for each in waiting], 2)}" if waiting else ""
    )
    yield Fault(
        "degraded",
        f"GPUs wait for storage: {_figures(starved[0])}; tasks waited for I/O {pressed:.0%} of the "
        f"time, disk "
        f"{disk[0]} busy {disk[1][0]:.0%} at {disk[1][1]:.0f} MB/s{who}",
        (
            f"/proc/pressure/io: {pressed:.0%} of the time; iowait {iowait:.0%}",
            *(
                f"{name}: busy {busy:.0%}, {speed:.0f} MB/s"
                for name, (busy, speed) in sample.disks.items()
                if busy > 0.2
            ),
        ),
        "the data loader reads slower than the GPU eats",
        ("a local cache, larger files, more prefetch; parallel readers",),
    )


@load_rule("load.one_core", "U01")
def one_core(sample: Sample) -> Iterator[Fault]:
    """One thread, or one worker, is full, and the GPU waits."""
    for program in _workers(sample):
        mine = [gpu for gpu in _starved(sample) if gpu.index in program.gpus]
        family = _family(sample, program.pid)
        full = [each for each in family if each.busiest >= FULL_CORE]
        bound = [each for each in family if _processors(each.allowed) == 1 and each.cores >= FULL_CORE]
        many = len(full) >= max(2, len(sample.cores) // 2)
        if not mine or not (full or bound) or many:
            continue
        worst = max(full or bound, key=lambda each: each.busiest)
        where = (
            "" if _processors(worst.allowed) != 1 else f", and may use one processor only ({worst.allowed})"
        )
        yield Fault(
            "degraded",
            f"one core feeds GPU {mine[0].index}: {worst.name} ({worst.pid}) has a thread at "
            f"{worst.busiest:.0%} of a "
            f"core{where}; the GPU is {_percent(mine[0].busy)} busy",
            (
                *(_figures(gpu) for gpu in mine),
                f"/proc/{worst.pid}/task: {worst.busiest_name} at {worst.busiest:.0%} of a core; "
                f"{sum(each.cores for each in family):.1f} of {len(sample.cores)} cores in all",
            ),
            "the main thread or a single worker prepares data, or launches kernels, slower than the GPU "
            "works",
            ("more workers (num_workers), pinned memory, decoding on the GPU, torch.compile or CUDA graphs",),
        )


def _processors(text: str) -> int:
    total = 0
    for piece in filter(None, text.split(",")):
        first, _, last = piece.partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            total += int(last or first) - int(first) + 1
    return total


@load_rule("load.all_cores", "U02")
def all_cores(sample: Sample) -> Iterator[Fault]:
    """All processors are full, and the GPU waits."""
    starved, mean = _starved(sample), sum(sample.cores.values()) / max(1, len(sample.cores))
    squeezed = sample.pressure("cpu") > 0.5 and mean > 0.7
    if starved and (mean > FULL_CORE or squeezed):
        free = [each for each in _workers(sample) if "OMP_NUM_THREADS" not in each.variables]
        yield Fault(
            "degraded",
            f"all {len(sample.cores)} cores are {mean:.0%} busy, and GPU {starved[0].index} is "
            f"{_percent(starved[0].busy)} busy",
            (
                f"/proc/stat: {mean:.0%}; pressure on processors {sample.pressure('cpu'):.0%}",
                _figures(starved[0]),
            ),
            "too few cores for the data loader, or too many threads for the cores"
            + ("; OMP_NUM_THREADS is not set" if free else ""),
            ("OMP_NUM_THREADS=1 for workers, fewer workers than cores, cheaper decoding, or more cores",),
        )


@load_rule("load.pcie", "U09")
def pcie(sample: Sample) -> Iterator[Fault]:
    """Copies fill the PCIe link."""
    for gpu in sample.gpus:
        if gpu.traffic is not None and gpu.traffic > 0.6:
            yield Fault(
                "degraded" if (gpu.busy or 0) < BUSY else "hint",
                f"GPU {gpu.index} moves {gpu.traffic_gbs:.1f} GB/s over PCIe, {gpu.traffic:.0%} of its link",
                (_figures(gpu),),
                "copies between host and GPU bound the program",
                (
                    "keep data on the GPU, overlap copies with work, pinned memory; doctor looks at the "
                    "link's width",
                ),
            )


@load_rule("load.network", "U15", "U16", source="nccl-doc")
def network(sample: Sample) -> Iterator[Fault]:
    """The network is at its rate, or traffic goes over the slow one."""
    fast = {name: each for name, each in sample.network.items() if "/" in name}
    for name, (speed, share) in sample.network.items():
        if share is not None and share > 0.7 and _used(sample):
            slow = bool(fast) and name not in fast and all(other < 0.1 * speed for other, _ in fast.values())
            yield Fault(
                "degraded",
                f"{name} carries {speed:.1f} GB/s, {share:.0%} of its rate"
                + (", and InfiniBand is quiet: NCCL fell back to sockets" if slow else ""),
                tuple(f"{each}: {rate:.2f} GB/s" for each, (rate, _) in sample.network.items()),
                "collectives between nodes are bound by the network",
                ("gpuprov nccl derive HOST; NCCL_DEBUG=INFO; gpuprov doctor for ports and GPUDirect",),
            )


@load_rule("load.hang", "U12")
def hang(sample: Sample) -> Iterator[Fault]:
    """Programs on GPUs that sleep in the kernel for the whole sample."""
    for program in _workers(sample):
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
                (f"sudo cat /proc/{program.pid}/stack",),
            )


@load_rule("load.idle_holder", "U11", source="project")
def idle_holder(sample: Sample) -> Iterator[Fault]:
    """Programs that hold memory and do nothing."""
    for program in _workers(sample):
        mine = [gpu for gpu in sample.gpus if gpu.index in program.gpus]
        if "WORLD_SIZE" in program.variables:
            continue  # a rank that waits for others: the straggler's rule speaks of it
        quiet = mine and all((gpu.busy or 0) < IDLE for gpu in mine)
        held = sum(gpu.used_mib or 0 for gpu in mine)
        if quiet and held > 1024 and sum(each.cores for each in _family(sample, program.pid)) < 0.02:
            yield Fault(
                "hint",
                f"{program.name} ({program.pid}) holds {held:.0f} MiB on GPU "
                f"{listed([str(each) for each in program.gpus], 8)} and does nothing",
                tuple(map(_figures, mine)),
                "a notebook, a server without load, or a job that waits",
                (f"end it, or share the GPU: ps -fp {program.pid}",),
            )


@load_rule("load.one_of_several", "U13", source="project")
def one_of_several(sample: Sample) -> Iterator[Fault]:
    """A program was given several GPUs and uses one."""
    for program in _workers(sample):
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
                f"{program.name} ({program.pid}) has {len(mine)} GPUs open and works on GPU "
                f"{working[0].index} alone",
                tuple(map(_figures, mine)),
                "it was started as one process, or its launcher does not use the others",
                (
                    "torchrun --nproc-per-node, or CUDA_VISIBLE_DEVICES for one; gpuprov launch writes "
                    "such lines",
                ),
            )


@load_rule("load.shared", "U14", source="project")
def shared(sample: Sample) -> Iterator[Fault]:
    """Several programs work on one GPU."""
    for gpu in sample.gpus:
        there = [each for each in _workers(sample) if gpu.index in each.gpus and each.cores > 0.05]
        single = [each for each in there if len(each.gpus) == 1]
        if len(single) > 1 and (gpu.busy or 0) > 0.2:
            yield Fault(
                "risk",
                f"{len(single)} programs share GPU {gpu.index}: "
                + listed([f"{each.name} ({each.pid})" for each in single]),
                (_figures(gpu),),
                "they take turns; each is slower than alone",
                ("give each its own GPU, or MPS or MIG where that is meant",),
            )


@load_rule("load.memory_bound", "U08")
def memory_bound(sample: Sample) -> Iterator[Fault]:
    """The GPU's own memory is the limit: no fault."""
    for gpu in sample.gpus:
        if (gpu.busy or 0) >= BUSY and (gpu.memory_busy or 0) > 0.8 and (gpu.power or 1) < 0.9:
            yield Fault(
                "hint",
                f"GPU {gpu.index} is bound by its memory: {_percent(gpu.memory_busy)} of the time at it, "
                f"{_percent(gpu.power)} of its power",
                (_figures(gpu),),
                "decoding, elementwise kernels: no fault of the machine",
                ("fusion (torch.compile), quantisation, larger batches",),
            )


@load_rule("load.small_kernels", "U05")
def small_kernels(sample: Sample) -> Iterator[Fault]:
    """Full by its utilisation, and hardly working: small kernels, small batches."""
    spinning = _spinning(sample)
    if len(_used(sample)) > 1 and len(spinning) >= 1:
        return
    for gpu in spinning:
        yield Fault(
            "degraded",
            f"GPU {gpu.index} looks full ({_percent(gpu.busy)}) at {_percent(gpu.power)} of its power: "
            f"small kernels",
            (
                _figures(gpu),
                f"memory used {_percent(gpu.memory)}, at memory {_percent(gpu.memory_busy)} of the time",
            ),
            "kernels too small to fill it, or launched one by one; utilisation counts any kernel as all",
            ("larger batches, CUDA graphs, torch.compile",),
        )


@load_rule("load.compute_bound", "U08")
def compute_bound(sample: Sample) -> Iterator[Fault]:
    """The GPU is the limit, as it should be."""
    full = [gpu for gpu in sample.gpus if (gpu.busy or 0) >= BUSY and (gpu.power or 0) >= HARD]
    if full:
        yield Fault(
            "hint",
            f"compute-bound, as it should be: {_figures(full[0])}"
            + (f", and {len(full) - 1} more alike" if len(full) > 1 else ""),
            tuple(map(_figures, full)),
            "the GPU itself is the limit: nothing on the machine holds it up",
            ("faster only by less work: lower precision, better kernels, more GPUs",),
        )
