"""An all-reduce over the GPUs of one machine through libnccl, told in lines as nccl-tests does."""

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
SECONDS = 1.0


def main(plan: "Values") -> None:
    """Measure over so many GPUs as the first argument says; 0 only proves that the libraries load.

    Prints `allreduce_mb 1024 ms 4.560 busbw_GBs 328.8` for each size, where mb is 2**20 bytes and GB/s is
    10**9 bytes a second, then NCCL's own log.
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
    """One line for the reader."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def measure(count: int, folders: "list[str]") -> None:
    """All sizes, each proven right before it is timed."""
    driver = Driver()
    nccl = Nccl([Gpu(driver, index) for index in range(count)], folders)
    wrong = 0
    try:
        for size in SIZES_MIB:
            told = nccl.measure(size * MIB, SECONDS, ["all_reduce"])["all_reduce"]
            seconds = 2.0 * (count - 1) / count * told["bytes"] / (told["value"] * 1e9)
            wrong += bool(told["wrong"])
            say("allreduce_mb {} ms {:.6f} busbw_GBs {:.3f}".format(size, seconds * 1000, told["value"]))
        say("# Out of bounds values : {}".format(wrong))
    finally:
        say(nccl.log())
    nccl.close()
