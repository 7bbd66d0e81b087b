"""An all-reduce over the GPUs of one machine through libnccl, printed in the format of nccl-tests."""

import os
import sys

from gpuprov.accept.node.between import MIB, Nccl
from gpuprov.accept.node.cuda import Driver, Gpu
from gpuprov.accept.node.main import FOLDERS
from gpuprov.accept.node.nccl import Library
from gpuprov.probe.node.base import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprov.probe.node.base import Values

SIZES_MIB = (1, 16, 256, 1024)
"""Sizes of the reduced data in MiB."""
SECONDS = 1.0
"""Duration of the measurement of each size."""


def main(plan: "Values") -> None:
    """Measure over the number of GPUs in the first argument; 0 only checks that the libraries load.

    Prints `allreduce_mb 1024 ms 4.560 busbw_GBs 328.8` for each size, where mb is 2**20 bytes and GB/s is
    10**9 bytes a second, then NCCL's own log. The process ends at once (os._exit): with 1 after a failure,
    whose message is printed, otherwise with 0. CUDA_VISIBLE_DEVICES and the plan are not used.
    """
    try:
        count, folders = int(sys.argv[1]), list(FOLDERS)
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if count:
            measure(count, folders)
        else:
            Driver()
            Library(folders)
    except Failed as failed:
        say(str(failed))
        os._exit(1)
    os._exit(0)


def say(line: str) -> None:
    """Print one line and flush it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def measure(count: int, folders: "list[str]") -> None:
    """Measure the first `count` GPUs; print rates, the number of sizes with wrong results, and NCCL's log.

    Args:
        folders: where libnccl is searched besides the loader's folders.

    Raises:
        Failed: CUDA or NCCL fails. The rest of NCCL's log is printed before, unless the start failed; its
            last warning is in the message.
    """
    driver = Driver()
    nccl = Nccl([Gpu(driver, index) for index in range(count)], folders)
    wrong = 0
    try:
        for size in SIZES_MIB:
            result = nccl.measure(size * MIB, SECONDS, ["all_reduce"])["all_reduce"]
            seconds = 2.0 * (count - 1) / count * result["bytes"] / (result["value"] * 1e9)
            wrong += bool(result["wrong"])
            say("allreduce_mb {} ms {:.6f} busbw_GBs {:.3f}".format(size, seconds * 1000, result["value"]))
        say("# Out of bounds values : {}".format(wrong))
    finally:
        say(nccl.log())
    nccl.close()
