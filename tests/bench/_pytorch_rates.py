"""Measurements of `gpuprov accept --level quick` by PyTorch, on a machine with GPUs; started as a file.

Needs only PyTorch. Prints one JSON object: versions, and measurement -> GPU -> rate, in the units and with
the GPUs' names of `gpuprov accept -o json`. As there, one process for each GPU loads all GPUs at the same
time, except for copies to and from the host; products are of the same size, of numbers of the same
distribution, after the same seconds of load; a rate is the median of five batches.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB, GIB = 2**20, 2**30
EDGE, BURST, BATCHES, HOLD_S, SHORT_S = 8192, 10, 5, 4.0, 1.0
SCHEMA = "gpuprov.bench.pytorch/1"
SHAPES = {
    "bf16": ("bfloat16", "int16", 0x3E00, 0x81FF),
    "fp16": ("float16", "int16", 0x3000, 0x8FFF),
    "tf32": ("float32", "int32", 0x3E000000, 0x81FFFFFF),
    "fp8": ("float8_e4m3fn", "uint8", 0x20, 0x9F),
    "fp64": ("float64", "int64", 0x3FC00000_00000000, 0x803FFFFF_FFFFFFFF - 2**64),
}
"""Number format -> types in PyTorch, and base and mask of random bits, those of `gpuprov accept`."""
Rates = dict[str, dict[str, float]]


class Rank:
    """One process with its GPU, among those of all GPUs."""

    def __init__(self, torch: Any, rank: int, count: int) -> None:
        self._torch, self._cuda, self._rank, self._count = torch, torch.cuda, rank, count
        self._cuda.set_device(rank)
        self.rates: Rates = {}

    def _seconds(self, work: Callable[[], object], times: int) -> float:
        """Return the seconds that the GPU takes for some turns of what `work` starts."""
        begin, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def _keep(
        self, name: str, amount: float, work: Callable[[], object], seconds: float, gpu: str = ""
    ) -> None:
        """Keep the amount of one turn per second, the median of batches.

        Args:
            gpu: pair of GPUs, or `all`; this rank's GPU if empty.
        """
        self._seconds(work, 2)
        once = max(self._seconds(work, 2) / 2, 1e-6)
        times = max(1, min(4000, int(seconds / BATCHES / once)))
        found = sorted(amount * times / self._seconds(work, times) for _ in range(BATCHES))
        self.rates.setdefault(name, {})[gpu or str(self._rank)] = round(found[BATCHES // 2], 3)

    def _together(self) -> None:
        """Wait for the GPU and for the other ranks."""
        self._cuda.synchronize()
        self._torch.distributed.barrier(device_ids=[self._rank])
        self._cuda.synchronize()

    def memory(self) -> None:
        """Measure reading and copying of the GPU's memory; copies count both directions."""
        source, target = (self._torch.empty(4 * GIB // 4, device="cuda").fill_(1.0) for _ in range(2))
        self._together()
        self._keep("memory_read", 4 * GIB / 1e9, lambda: source.view(-1, 16384).sum(dim=1), 0.2)
        self._keep("memory_copy", 8 * GIB / 1e9, lambda: target.copy_(source), 0.2)

    def host(self) -> None:
        """Measure copies to and from pinned memory, one GPU after the other."""
        device, size = self._torch.empty(256 * MIB, dtype=self._torch.uint8, device="cuda"), 256 * MIB / 1e9
        pinned = self._torch.empty(256 * MIB, dtype=self._torch.uint8, pin_memory=True)
        for rank in range(self._count):
            self._together()
            if rank == self._rank:
                self._keep("d2h", size, lambda: pinned.copy_(device, non_blocking=True), 0.4)
                self._keep("h2d", size, lambda: device.copy_(pinned, non_blocking=True), 0.4)

    def matrices(self) -> None:
        """Measure dense products on all GPUs at once, the first format after some seconds of load."""
        work = 2.0 * EDGE**3 / 1e12
        self._torch.backends.cuda.matmul.allow_tf32 = True
        for place, name in enumerate(SHAPES):
            multiply = self._product(name)
            multiply()
            self._together()
            if name in ("bf16", "fp8"):
                burst = max(work * BURST / self._seconds(multiply, BURST) for _ in range(3))
                self.rates.setdefault(f"{name}_burst", {})[str(self._rank)] = round(burst, 3)
            begun = time.monotonic()
            while not place and time.monotonic() - begun < HOLD_S:
                self._seconds(multiply, 16)
            self._keep(name, work, multiply, SHORT_S)

    def _product(self, name: str) -> Callable[[], object]:
        """Return a function that starts a product of random matrices, the second one transposed."""
        torch = self._torch
        one, other = (self._random(name) for _ in range(2))
        if name != "fp8":
            out = torch.empty_like(one)
            return lambda: torch.mm(one, other.t(), out=out)
        scale = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(
            one, other.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    def _random(self, name: str) -> Any:
        """Return a matrix of random signs, fractions and exponents below 2."""
        torch = self._torch
        kind, bits, base, mask = SHAPES[name]
        drawn = torch.randint(-(2**63), 2**63 - 1, (EDGE, EDGE), device="cuda", dtype=torch.int64)
        return ((drawn & mask) ^ base).to(getattr(torch, bits)).view(getattr(torch, kind))

    def peers(self) -> None:
        """Measure copies between each pair of GPUs, one pair at a time, in the first rank."""
        self._together()
        if self._rank == 0:
            made = [
                self._torch.empty(256 * MIB, dtype=self._torch.uint8, device=f"cuda:{index}")
                for index in range(self._count)
            ]
            pairs = [(source, target) for source in range(self._count) for target in range(self._count)]
            pairs = [(source, target) for source, target in pairs if source != target]
            for source, target in pairs:  # PyTorch copies slowly until both directions of a pair were used
                made[target].copy_(made[source])
            for source, target in pairs:
                self._cuda.set_device(source)
                copy = self._copy(made[target], made[source])
                self._keep("peer", 256 * MIB / 1e9, copy, 0.1, f"{source}>{target}")
            self._cuda.set_device(0)
        self._together()

    @staticmethod
    def _copy(target: Any, source: Any) -> Callable[[], object]:
        """Return a function that starts a copy."""
        return lambda: target.copy_(source, non_blocking=True)

    def collectives(self) -> None:
        """Measure collectives of 1 GiB; rates are bus bandwidths as nccl-tests counts them."""
        torch, share = self._torch, (self._count - 1) / self._count
        one, other = (torch.ones(GIB // 4, device="cuda") for _ in range(2))
        piece = one[: GIB // 4 // self._count]
        for name, factor, work in (
            ("all_reduce", 2 * share, lambda: torch.distributed.all_reduce(one)),
            ("all_gather", share, lambda: torch.distributed.all_gather_into_tensor(other, piece)),
            ("all_to_all", share, lambda: torch.distributed.all_to_all_single(other, one)),
        ):
            work()
            self._together()
            # Each rank must start the same number of collectives.
            found = sorted(factor * GIB / 1e9 * 20 / self._seconds(work, 20) for _ in range(BATCHES))
            self.rates[name] = {"all": round(found[BATCHES // 2], 3)}


def measure(rank: int, count: int, folder: str) -> None:
    """Run one rank, and write its rates to `folder`."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    one = Rank(torch, rank, count)
    meeting = Path(folder, "ranks").as_uri()
    torch.distributed.init_process_group("nccl", init_method=meeting, rank=rank, world_size=count)
    for step in (one.memory, one.host, one.matrices, one.peers, *([one.collectives] if count > 1 else ())):
        step()
        torch.cuda.empty_cache()
    Path(folder, f"{rank}.json").write_text(json.dumps(one.rates))
    torch.distributed.destroy_process_group()


def main() -> int:
    """Measure on the number of GPUs in the first argument, by default all; print the rates."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    import torch.multiprocessing as processes  # type: ignore[import-not-found, unused-ignore]

    # As in gpuprov: a program that dies with multicast memory can make it unusable for others.
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    count = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    rates: Rates = {}
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(measure, args=(count, folder), nprocs=count)
        for rank in reversed(range(count)):
            for name, found in json.loads(Path(folder, f"{rank}.json").read_text()).items():
                rates.setdefault(name, {}).update(found)
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "nccl": nccl}
    print(json.dumps({"schema": SCHEMA, **versions, "gpus": count, "rates": rates}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
