"""Measurement of all-reduces over the GPUs of one machine with PyTorch; started as a file.

Runs on any Python that has PyTorch. Without RANK in the environment it starts one copy of itself for
each GPU and waits for all; with RANK it is one of them. The ranks meet in a file, so no port is opened.

Prints `allreduce_mb 1024 ms 4.56 busbw_GBs 328.8` for each size, where mb is 2**20 bytes and GB/s is 10**9
bytes a second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
SIZES_MIB = (1, 16, 256, 1024)
WARM_UP, MEASURED = 5, 20


def main(gpus: int) -> int:
    """Start a rank for each GPU; when one fails, kill the others. Return 0, or the absolute exit code of the
    first that failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder, "ranks").as_uri()
        common = {**os.environ, "WORLD_SIZE": str(gpus), "GPUPROV_MEETING": meeting}
        command = [sys.executable, __file__, str(gpus)]
        ranks = [subprocess.Popen(command, env={**common, "RANK": str(rank)}) for rank in range(gpus)]
        try:
            return _wait(ranks)
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                rank.wait()


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    """Wait for the ranks; return 0 when all ended well, or the absolute exit code of a rank as soon as one
    fails.
    """
    while True:
        codes = [rank.poll() for rank in ranks]
        failed = next((code for code in codes if code), 0)
        if failed or all(code == 0 for code in codes):
            return abs(failed)
        time.sleep(0.1)


def measure(rank: int, gpus: int, meeting: str) -> None:
    """Run one rank on the GPU with its number: check the result of one all-reduce, then time all sizes.

    Rank 0 prints each size with its milliseconds and bus bandwidth in GB/s, then the number of wrong values.

    Args:
        meeting: address at which the ranks meet, as `init_method` of PyTorch.
    """
    import torch  # type: ignore[import-not-found, unused-ignore]
    import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=meeting, rank=rank, world_size=gpus)
    wrong = _wrong_values(torch, dist, rank, gpus)
    for size_mib in SIZES_MIB:
        seconds = _seconds(torch, dist, torch.zeros(size_mib * MIB // 4, device="cuda"))
        busbw = size_mib * MIB / seconds * 2 * (gpus - 1) / gpus / 1e9
        if rank == 0:
            print(f"allreduce_mb {size_mib} ms {seconds * 1000:.6f} busbw_GBs {busbw:.3f}", flush=True)  # noqa: T201
    if rank == 0:
        print(f"# Out of bounds values : {wrong}", flush=True)  # noqa: T201
    dist.destroy_process_group()


def _wrong_values(torch: Any, dist: Any, rank: int, gpus: int) -> int:
    """Return how many values of one all-reduce differ from the sum of 1 … gpus, on all ranks."""
    values = torch.full((MIB,), float(rank + 1), device="cuda")
    dist.all_reduce(values)
    wrong = (values != gpus * (gpus + 1) / 2).sum()
    dist.all_reduce(wrong)
    return int(wrong)


def _seconds(torch: Any, dist: Any, buffer: Any) -> float:
    """Return the slowest rank's seconds for one all-reduce, the mean of `MEASURED` after `WARM_UP` others."""
    for _ in range(WARM_UP):
        dist.all_reduce(buffer)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(MEASURED):
        dist.all_reduce(buffer)
    torch.cuda.synchronize()
    mine = torch.tensor([(time.perf_counter() - begun) / MEASURED], device="cuda", dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return float(mine)


if __name__ == "__main__":
    if "RANK" in os.environ and "GPUPROV_MEETING" in os.environ:
        measure(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["GPUPROV_MEETING"])
    else:
        sys.exit(main(int(sys.argv[1])))
