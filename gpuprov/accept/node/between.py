"""Measurements between the GPUs of one machine: copies between each pair, and collectives through libnccl."""

from ctypes import byref, c_int, c_size_t, c_void_p

from gpuprov.accept.node.nccl import UINT8, Library, constant
from gpuprov.probe.node.base import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from gpuprov.accept.node.cuda import Gpu
    from gpuprov.probe.node.base import Values

MIB = 1024 * 1024


def pairs(gpus: "Sequence[Gpu]", seconds: float) -> "list[Values]":
    """Measure copies from every GPU to every other, one pair at a time; return the row of `_pair` for each.

    `seconds` is the time for all pairs together. Each GPU needs twice 256 MiB of free memory; Failed if CUDA
    fails.
    """
    size, found = 256 * MIB, []
    memory = []
    for gpu in gpus:
        gpu.use()
        memory.append(gpu.allocate(size))
        gpu.fill(memory[-1], size, gpu.index)
        gpu.wait()
    each = seconds / max(1, len(gpus) * (len(gpus) - 1))
    for source, origin in zip(gpus, memory):
        for target in gpus:
            if source is not target:
                found.append(_pair(source, target, origin, size, each))
    for gpu, address in zip(gpus, memory):
        gpu.use()
        gpu.free(address)
    return found


def _pair(source: "Gpu", target: "Gpu", origin: int, size: int, seconds: float) -> "Values":
    """Measure copies from one GPU to another, directly if they can.

    Return `Gpu.rate` in GB/s with `from`, `to`, `direct` and `wrong`. `direct` is whether the GPUs reach each
    other without the host; `wrong` is the result of `Gpu.check`. Failed if CUDA fails.
    """
    direct = c_int()
    source.call("cuDeviceCanAccessPeer", byref(direct), source.index, target.index)
    target.use()
    landing = target.allocate(size)
    source.use()
    if direct.value:
        try:
            source.call("cuCtxEnablePeerAccess", target.context, 0)
        except Failed as failed:
            if "ALREADY_ENABLED" not in str(failed):
                raise

    def copy() -> None:
        source.call("cuMemcpyPeerAsync", landing, target.context, origin, source.context, size, source.stream)

    result = source.rate(copy, size / 1e9, seconds)
    target.use()
    wrong = target.check(landing, size, source.index)
    target.free(landing)
    result.update({"from": source.index, "to": target.index, "direct": bool(direct.value), "wrong": wrong})
    return result


class Nccl(Library):
    """NCCL with one communicator over GPUs of this process, rank by rank.

    Args:
        folders: where `Library` looks for libnccl.

    Raises:
        Failed: it, or a method, fails in NCCL or CUDA.
    """

    def __init__(self, gpus: "Sequence[Gpu]", folders: "Sequence[str]") -> None:
        super().__init__(folders)
        self._gpus = gpus
        self._ranks = (c_void_p * len(gpus))()
        indices = (c_int * len(gpus))(*[gpu.index for gpu in gpus])
        self.call("ncclCommInitAll", self._ranks, len(gpus), indices)

    def close(self) -> None:
        """Destroy the communicators."""
        for rank in self._ranks:
            self.call("ncclCommDestroy", c_void_p(rank))

    def measure(
        self, size: int, seconds: float, names: "Sequence[str]" = ("all_reduce", "all_gather", "all_to_all")
    ) -> "Values":
        """Measure each collective over up to `size` bytes.

        Return its `Gpu.rate` in GB/s, `bytes` and `wrong` by name. The rate is the bus bandwidth as
        nccl-tests counts it. A right result has None as `wrong`. `seconds` is the time for all collectives
        together.

        Raises:
            Failed: NCCL or the driver fails.
        """
        count = len(self._gpus)
        piece = size // count // 256 * 256
        whole = piece * count
        send, take = [], []
        for gpu in self._gpus:
            gpu.use()
            send.append(gpu.allocate(whole))
            take.append(gpu.allocate(whole))
        result = {}
        share = float(count - 1) / count
        for name in names:
            factor = 2 * share if name == "all_reduce" else share
            start = getattr(self, "_" + name)(send, take, piece)
            self._fill(name, send, piece)
            self._together(start)()
            wrong = self._wrong(name, take, piece)
            result[name] = dict(
                self._rate(self._together(start), factor * whole / 1e9, seconds / len(names)),
                bytes=whole,
                wrong=wrong,
            )
        for gpu, one, other in zip(self._gpus, send, take):
            gpu.use()
            gpu.free(one, other)
        return result

    def _rate(self, start: "Callable[[], None]", amount: float, seconds: float) -> "Values":
        """Return the rate by `Gpu.rate` on the first GPU, and wait for all of them.

        No rank finishes a collective before the others take part.
        """
        self._gpus[0].use()
        result = self._gpus[0].rate(start, amount, seconds)
        for gpu in self._gpus:
            gpu.use()
            gpu.wait()
        self._gpus[0].use()
        return result

    def _together(self, start: "Callable[[int], None]") -> "Callable[[], None]":
        """Return a function that calls `start` for every rank within one NCCL group operation."""

        def all_ranks() -> None:
            for rank in range(len(self._gpus)):
                start(rank)

        return lambda: self.together(all_ranks)

    def _place(self, rank: int) -> "tuple[c_void_p, Any]":
        """Return the communicator and the stream of a rank, the last arguments of NCCL's functions."""
        return c_void_p(self._ranks[rank]), self._gpus[rank].stream

    def _all_reduce(self, send: "list[int]", take: "list[int]", piece: int) -> "Callable[[int], None]":
        """Return a function that starts one rank's part of an all-reduce."""
        whole = piece * len(send)
        return lambda rank: self.all_reduce(send[rank], take[rank], whole, *self._place(rank))

    def _all_gather(self, send: "list[int]", take: "list[int]", piece: int) -> "Callable[[int], None]":
        """Return a function that starts one rank's part of an all-gather."""
        return lambda rank: self.call(
            "ncclAllGather", c_void_p(send[rank]), c_void_p(take[rank]), c_size_t(piece), UINT8,
            *self._place(rank)
        )  # fmt: skip

    def _all_to_all(self, send: "list[int]", take: "list[int]", piece: int) -> "Callable[[int], None]":
        """Return a function that starts one rank's part of an all-to-all."""

        def start(rank: int) -> None:
            for peer in range(len(self._gpus)):
                self.send(send[rank] + peer * piece, piece, peer, *self._place(rank))
                self.receive(take[rank] + peer * piece, piece, peer, *self._place(rank))

        return start

    def _fill(self, name: str, send: "list[int]", piece: int) -> None:
        """Fill each rank's memory to send: for every peer a piece with the number of `_sent`."""
        for rank, gpu in enumerate(self._gpus):
            gpu.use()
            for peer in range(len(self._gpus)):
                gpu.fill(send[rank] + peer * piece, piece, 0, constant(_sent(name, rank, peer)))
            gpu.wait()

    def _wrong(self, name: str, take: "list[int]", piece: int) -> "Values | None":
        """Return the first wrong piece: `Gpu.check`'s result with rank and peer, or None if all are right."""
        count = len(self._gpus)
        for rank, gpu in enumerate(self._gpus):
            gpu.use()
            gpu.wait()
            for peer in range(count):
                right = count * (count + 1) / 2.0 if name == "all_reduce" else _sent(name, peer, rank)
                wrong = gpu.check(take[rank] + peer * piece, piece, 0, constant(right))
                if wrong:
                    return dict(wrong, rank=rank, peer=peer)
        return None


def _sent(name: str, rank: int, peer: int) -> float:
    """Return the number that fills the piece from one rank for another; only all-to-all uses `peer`."""
    return float(rank + 1 if name != "all_to_all" else 1000 * (rank + 1) + peer)
