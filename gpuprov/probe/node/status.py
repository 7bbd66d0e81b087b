"""Collector of one inexpensive reading: the current state of every GPU, and its compute processes."""

import os
import time

from gpuprov.probe.node.base import BOOT_CLOCK, Failed, collector, find_program, read_or_none
from gpuprov.probe.node.gpu_sample import reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values


@collector(seconds=15)
def status(parameters: "Values") -> "Any":
    """Return GPUs, up to 8 compute processes of each (pid, name, user, age in seconds, MiB), and the load.

    Raises:
        Failed: no NVIDIA driver is loaded.
    """
    if not os.path.exists("/proc/driver/nvidia/version") and not find_program("nvidia-smi"):
        raise Failed("no NVIDIA driver is loaded")
    gpus = reader()
    rows = [line.split(":") for line in (read_or_none("/etc/passwd") or "").splitlines()]
    users = {row[2]: row[0] for row in rows if len(row) > 2}
    programs = {
        str(index): [_program(pid, mib, users) for pid, mib in rows[:8]]
        for index, rows in gpus.processes().items()
    }
    return {
        "gpus": gpus.read(),
        "programs": programs,
        "load": (read_or_none("/proc/loadavg") or "0").split()[0],
    }


def _program(pid: int, mib: int, users: "dict[str, str]") -> "list[Any]":
    """Return pid, name, user (or number), age in seconds (None if it has ended) and MiB of one process; name
    and user are "" if it has ended.
    """
    folder = "/proc/" + str(pid)
    words = (read_or_none(folder + "/stat", 4096) or "").rpartition(")")[2].split()
    try:
        owner = str(os.stat(folder).st_uid)
    except OSError:
        owner = ""
    age = None
    if len(words) > 19:
        age = int(time.clock_gettime(BOOT_CLOCK) - int(words[19]) / float(os.sysconf("SC_CLK_TCK")))
    name = (read_or_none(folder + "/comm", 256) or "").strip()
    return [pid, name, users.get(owner, owner), age, mib]
