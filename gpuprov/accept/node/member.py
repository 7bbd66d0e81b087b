"""One node's part in a group: join the communicator, exchange with every other member, reduce."""

import binascii
import struct
import time

from gpuprov.accept.node.cuda import Driver, Gpu
from gpuprov.accept.node.main import FOLDERS
from gpuprov.accept.node.nccl import Library, constant

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from typing import Any

    from gpuprov.probe.node.base import Values

SMALL, SMALL_TURNS = 1024, 40
"""Bytes of a small message, and number of times it is sent."""
JOINING, REDUCING = -1, -2
"""Steps before the first exchange and after the last one."""


class Member:
    """Steps of the worker that holds this node's GPUs.

    Args:
        progress: memory shared with the parent: the current step of the exchange, and its member.

    Raises:
        Failed: a step, if CUDA or NCCL fails.
    """

    def __init__(self, indices: "list[int]", folders: "list[str]", progress: "mmap.mmap") -> None:
        self._indices, self._progress = indices, progress
        self._folders = folders + list(FOLDERS)
        self._gpus, self._nccl = [], None  # type: list[Gpu], Any
        self._ranks = []  # type: list[Any]

    def __call__(self, name: str, arguments: "Any") -> "Any":
        """Carry out the order (method) of that name."""
        return getattr(self, name)(arguments)

    def id(self, _: "Any") -> str:
        """Return the id of a new communicator in hexadecimal; its members meet through this node."""
        self._start()
        return binascii.hexlify(self._nccl.unique_id()).decode()

    def _start(self) -> None:
        """Open the GPUs and load libnccl, unless that is done."""
        if self._nccl is None:
            driver = Driver()
            self._gpus = [Gpu(driver, index) for index in self._indices]
            self._nccl = Library(self._folders)

    def join(self, order: "Values") -> "Values":
        """Take part in a group: exchange with every other member, then reduce together.

        Args:
            order: `id`; `members`, a list of [first rank, indices of its GPUs]; `me`, this node's index in
                it; this node's `steps` of the exchange, [number, one member, other member]; `bytes` and
                `turns` of an exchange; `reduce`, bytes and turns of the all-reduce; `log`, whether to return
                NCCL's log.

        Returns:
            `exchange`, a row for each other member; `reduced`; `joined_s`, seconds to join; `ranks`, their
            number; NCCL's version, path and log.

        Raises:
            Failed: CUDA or NCCL fails.
        """
        self._note(JOINING, 0)
        self._start()
        nccl, members, me = self._nccl, order["members"], order["me"]
        total = sum(len(gpus) for _, gpus in members)
        made = []  # type: list[Any]

        def join_all() -> None:
            for number, gpu in enumerate(self._gpus):
                gpu.use()
                made.append(nccl.join(binascii.unhexlify(order["id"]), total, members[me][0] + number))

        begun = time.monotonic()
        nccl.together(join_all)
        self._ranks = made
        result = {"joined_s": round(time.monotonic() - begun, 3), "ranks": total}  # type: Values
        result["exchange"] = self._exchange(order)
        result["reduced"] = self._reduce(order, total)
        log = nccl.log()
        result.update(log=log if order["log"] else "", version=nccl.version, library=nccl.path)
        for rank in self._ranks:
            nccl.call("ncclCommDestroy", rank)
        return result

    def _note(self, step: int, member: int) -> None:
        """Write the current step and its member into the shared memory."""
        self._progress.seek(0)
        self._progress.write(struct.pack("<ii", step, member))

    def _wait(self) -> None:
        """Wait until all work of all GPUs is done."""
        for gpu in self._gpus:
            gpu.use()
            gpu.wait()

    def _exchange(self, order: "Values") -> "list[Values]":
        """Exchange with every other member, each direction separately, in the order of the steps; return a
        row for each.
        """
        size, me = order["bytes"], order["me"]
        memory = []
        for gpu in self._gpus:
            gpu.use()
            memory.append((gpu.allocate(size), gpu.allocate(size)))
            gpu.fill(memory[-1][0], size, me * 64 + gpu.index)
        self._wait()
        found = []
        for number, first, second in order["steps"]:
            peer = second if first == me else first
            self._note(number, peer)
            found.append(self._with(peer, [first, second], memory, order))
        for gpu, both in zip(self._gpus, memory):
            gpu.use()
            gpu.free(*both)
        return found

    def _with(self, peer: int, pair: "list[int]", memory: "Any", order: "Values") -> "Values":
        """Measure the data from one member: GB/s (`value`), `wrong`, and µs of a small message (`us`).

        `wrong` is the first wrong lane, or None. If the member sends nothing, `value` and `wrong` are
        missing.
        """
        size, turns = order["bytes"], order["turns"]
        lanes = min(len(self._gpus), len(order["members"][peer][1]))
        result = {"member": peer}  # type: Values
        for sender in pair:
            sends = sender == order["me"]
            self._turns(peer, order, memory, lanes, size, sends, 1)
            if not sends:
                result["wrong"] = self._wrong(peer, memory, lanes, size, order)
            begun = time.monotonic()
            self._turns(peer, order, memory, lanes, size, sends, turns)
            if not sends:
                result["value"] = round(lanes * size * turns / (time.monotonic() - begun) / 1e9, 3)
        for turns in (4, SMALL_TURNS):
            begun = time.monotonic()
            self._both_ways(peer, order, memory, turns)
        result["us"] = round((time.monotonic() - begun) / SMALL_TURNS * 1e6, 1)
        return result

    def _turns(
        self, peer: int, order: "Values", memory: "Any", lanes: int, size: int, sends: bool, turns: int
    ) -> None:
        """Send to or receive from a member some times, GPU by GPU (lane), and wait."""
        first = order["members"][peer][0]

        def once() -> None:
            for lane in range(lanes):
                gpu, rank = self._gpus[lane], self._ranks[lane]
                if sends:
                    self._nccl.send(memory[lane][0], size, first + lane, rank, gpu.stream)
                else:
                    self._nccl.receive(memory[lane][1], size, first + lane, rank, gpu.stream)

        for _ in range(turns):
            self._nccl.together(once)
        self._wait()

    def _both_ways(self, peer: int, order: "Values", memory: "Any", turns: int) -> None:
        """Exchange a small message in both directions some times between the first GPUs."""
        first, gpu, rank = order["members"][peer][0], self._gpus[0], self._ranks[0]

        def once() -> None:
            self._nccl.send(memory[0][0], SMALL, first, rank, gpu.stream)
            self._nccl.receive(memory[0][1], SMALL, first, rank, gpu.stream)

        gpu.use()
        for _ in range(turns):
            self._nccl.together(once)
            gpu.wait()

    def _wrong(self, peer: int, memory: "Any", lanes: int, size: int, order: "Values") -> "Values | None":
        """Return `Gpu.check`'s result for the first lane whose data differs from what was sent, or None."""
        for lane in range(lanes):
            gpu = self._gpus[lane]
            gpu.use()
            seed = peer * 64 + order["members"][peer][1][lane]
            wrong = gpu.check(memory[lane][1], size, seed)
            if wrong:
                return dict(wrong, gpu=gpu.index)
        return None

    def _reduce(self, order: "Values", total: int) -> "Values":
        """Measure the group's all-reduce.

        Return its bus bandwidth in GB/s as nccl-tests counts it, `bytes` and `wrong`. A right result has None
        as `wrong`.
        """
        size, turns = order["reduce"]
        first = order["members"][order["me"]][0]
        self._note(REDUCING, order["me"])
        memory = []
        for lane, gpu in enumerate(self._gpus):
            gpu.use()
            memory.append(gpu.allocate(size))
            gpu.fill(memory[-1], size, 0, constant(float(first + lane + 1)))
        self._wait()

        def once() -> None:
            for lane, gpu in enumerate(self._gpus):
                self._nccl.all_reduce(memory[lane], memory[lane], size, self._ranks[lane], gpu.stream)

        self._nccl.together(once)
        self._wait()
        wrong = None
        for lane, gpu in enumerate(self._gpus):
            gpu.use()
            wrong = wrong or gpu.check(memory[lane], size, 0, constant(total * (total + 1) / 2.0))
            gpu.fill(memory[lane], size, 0, constant(0.0))
        self._wait()
        for _ in range(2):
            self._nccl.together(once)
        self._wait()
        begun = time.monotonic()
        for _ in range(turns):
            self._nccl.together(once)
        self._wait()
        seconds = (time.monotonic() - begun) / turns
        for gpu, one in zip(self._gpus, memory):
            gpu.use()
            gpu.free(one)
        busbw = 2.0 * (total - 1) / total * size / seconds / 1e9
        return {"value": round(busbw, 3), "wrong": wrong, "bytes": size}
