"""Rules for limits outside the GPU: swap, storage, one core, all cores, PCIe, the network."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from gpuprov.doctor.concerns.host import count_cpus
from gpuprov.doctor.examination import NAME
from gpuprov.doctor.fault import Fault, listed
from gpuprov.doctor.load.questions import (
    BUSY,
    FULL_CORE,
    family_of,
    figures,
    load_rule,
    percent,
    starved_gpus,
    used_gpus,
    workers,
)
from gpuprov.doctor.load.sample import Sample
from gpuprov.untrusted import shell

WAITS_FOR_DISKS = 0.2
SHOWN_PORTS = 8
"""Maximum number of interfaces and RDMA ports whose rates a fault lists."""


@load_rule("load.swap", "U04")
def swapping(sample: Sample) -> Iterator[Fault]:
    """Report that the host swaps more than 50 pages per second while GPUs are starved."""
    pages = sample.swapped()
    if pages > 50 and starved_gpus(sample):
        yield Fault(
            "degraded",
            f"the host swaps {pages:.0f} pages a second, and GPUs wait: {figures(starved_gpus(sample)[0])}",
            (f"/proc/vmstat: {pages:.0f} pages a second",),
            "memory is short",
            (shell("fewer workers, smaller caches, more memory"),),
        )


@load_rule("load.storage", "U03")
def storage(sample: Sample) -> Iterator[Fault]:
    """Report that programs of starved GPUs wait for disks, by sleeping tasks, I/O pressure, or more than
    `WAITS_FOR_DISKS` iowait.
    """
    starved = starved_gpus(sample)
    if not starved:
        return
    waiting = [each for each in sample.programs if each.asleep >= 0.2]
    pressed, iowait = sample.pressure("io"), sample.iowait
    disk = max(sample.disks.items(), key=lambda each: each[1][0], default=("none", (0.0, 0.0)))
    if not ((waiting and pressed > 0.2) or iowait > WAITS_FOR_DISKS or (pressed > 0.5 and disk[1][0] > 0.5)):
        return
    who = (
        f"; waiting for it: {listed([f'{each.name} ({each.pid})' for each in waiting], 2)}" if waiting else ""
    )
    yield Fault(
        "degraded",
        f"GPUs wait for storage: {figures(starved[0])}; tasks waited for I/O {pressed:.0%} of the "
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
        "the data loader reads more slowly than the GPU consumes",
        (shell("a local cache, larger files, more prefetch; parallel readers"),),
    )


@load_rule("load.one_core", "U01")
def one_core(sample: Sample) -> Iterator[Fault]:
    """Report programs whose thread, or worker bound to one processor, uses a full core (`FULL_CORE`) while
    their GPU is starved; not if half of all cores are full.
    """
    for program in workers(sample):
        mine = [gpu for gpu in starved_gpus(sample) if gpu.index in program.gpus]
        family = family_of(sample, program.pid)
        full = [each for each in family if each.busiest >= FULL_CORE]
        bound = [each for each in family if each.cores >= FULL_CORE and count_cpus(each.allowed) == 1]
        many = len(full) >= max(2, len(sample.cores) // 2)
        if not mine or not (full or bound) or many:
            continue
        worst = max(full or bound, key=lambda each: each.busiest)
        where = (
            "" if count_cpus(worst.allowed) != 1 else f", and may use one processor only ({worst.allowed})"
        )
        yield Fault(
            "degraded",
            f"one core limits GPU {mine[0].index}: {worst.name} ({worst.pid}) has a thread at "
            f"{worst.busiest:.0%} of a "
            f"core{where}; the GPU is {percent(mine[0].busy)} busy",
            (
                *(figures(gpu) for gpu in mine),
                f"/proc/{worst.pid}/task: {worst.busiest_name} at {worst.busiest:.0%} of a core; "
                f"{sum(each.cores for each in family):.1f} of {len(sample.cores)} cores in all",
            ),
            "the main thread or a single worker prepares data, or launches kernels, slower than the GPU "
            "works",
            (
                shell(
                    "more workers (num_workers), pinned memory, decoding on the GPU, "
                    "torch.compile or CUDA graphs"
                ),
            ),
        )


@load_rule("load.all_cores", "U02")
def all_cores(sample: Sample) -> Iterator[Fault]:
    """Report that all processors are busy (their mean above `FULL_CORE`), or under pressure and 70 % busy,
    while a GPU is starved.
    """
    starved, mean = starved_gpus(sample), sum(sample.cores.values()) / max(1, len(sample.cores))
    squeezed = sample.pressure("cpu") > 0.5 and mean > 0.7
    if starved and (mean > FULL_CORE or squeezed):
        free = [each for each in workers(sample) if "OMP_NUM_THREADS" not in each.variables]
        yield Fault(
            "degraded",
            f"all {len(sample.cores)} cores are {mean:.0%} busy, and GPU {starved[0].index} is "
            f"{percent(starved[0].busy)} busy",
            (
                f"/proc/stat: {mean:.0%}; pressure on processors {sample.pressure('cpu'):.0%}",
                figures(starved[0]),
            ),
            "too few cores for the data loader, or too many threads for the cores"
            + ("; OMP_NUM_THREADS is not set" if free else ""),
            (
                shell(
                    "OMP_NUM_THREADS=1 for workers, fewer workers than cores, cheaper decoding, or more cores"
                ),
            ),
        )


@load_rule("load.pcie", "U09")
def pcie(sample: Sample) -> Iterator[Fault]:
    """Report GPUs that use more than 60 % of their PCIe link; only a hint for a GPU with `BUSY`."""
    for gpu in sample.gpus:
        if gpu.traffic is not None and gpu.traffic > 0.6:
            yield Fault(
                "degraded" if (gpu.busy or 0) < BUSY else "hint",
                f"GPU {gpu.index} moves {gpu.traffic_gbs:.1f} GB/s over PCIe, {gpu.traffic:.0%} of its link",
                (figures(gpu),),
                "copies between host and GPU bound the program",
                (
                    shell(
                        "keep data on the GPU, overlap copies with work, pinned memory; doctor "
                        "looks at the link's width"
                    ),
                ),
            )


@load_rule("load.network", "U15", "U16", source="nccl-doc")
def network(sample: Sample) -> Iterator[Fault]:
    """Report interfaces above 70 % of their rate while GPUs are in use, and that InfiniBand is quiet
    meanwhile.
    """
    if not used_gpus(sample):
        return
    fast = {name: each for name, each in sample.network.items() if "/" in name}
    rates = tuple(
        f"{name[:NAME]}: {rate:.2f} GB/s" for name, (rate, _) in islice(sample.network.items(), SHOWN_PORTS)
    )
    for name, (speed, share) in sample.network.items():
        if share is not None and share > 0.7:
            slow = bool(fast) and name not in fast and all(other < 0.1 * speed for other, _ in fast.values())
            yield Fault(
                "degraded",
                f"{name[:NAME]} carries {speed:.1f} GB/s, {share:.0%} of its rate"
                + (", and InfiniBand is quiet: NCCL fell back to sockets" if slow else ""),
                rates,
                "collectives between nodes are bound by the network",
                (shell("gpuprov nccl derive HOST; NCCL_DEBUG=INFO; gpuprov doctor for ports and GPUDirect"),),
            )
