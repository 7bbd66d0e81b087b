"""Collector of a sample over some seconds: GPUs, their programs with children, and the host."""

import glob
import os
import re
import time

from gpuprov.probe.node.base import Failed, collector, names_in, read, read_or_none
from gpuprov.probe.node.gpu import users_of
from gpuprov.probe.node.gpu_sample import reader
from gpuprov.probe.node.people import People, variables_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values
    from gpuprov.probe.node.gpu_sample import Nvml, Smi

TICK_S = 0.25
"""Seconds between two readings."""
PROGRAMS_AT_MOST, PROGRAM_SIZE = 400, 640
"""Number of programs, and bytes of a program in the answer, beyond which its user has fewer others there: an
answer has two looks, and each of 8 ranks some 200 threads of 35 bytes.
"""
THREADS_AT_MOST = 256
TICKS = os.sysconf("SC_CLK_TCK")
WANTED = re.compile(r"(?:OMP_NUM_THREADS|WORLD_SIZE)\Z")
"""Names of the programs' variables that are returned."""


@collector(seconds=120)
def load(parameters: "Values") -> "Any":
    """Return readings of the GPUs for `sample` seconds, and counters of host and programs before and after.
    Failed readings stay in `readings`, with `error`.

    Also the compute processes, and the page size. `states` has a letter of each program for each reading;
    `ticks` is the number of clock ticks per second.

    Raises:
        Failed: no reading succeeded; with the reason of the first one.
    """
    seconds = float(parameters["sample"])
    gpus = reader()
    first = _look(gpus)
    begun, readings, states = time.monotonic(), [], {}  # type: float, list[Any], dict[str, str]
    while time.monotonic() - begun < seconds:
        readings.append(_reading(gpus))
        for pid in first["programs"]:
            states[pid] = states.get(pid, "") + _state(pid)
        time.sleep(max(0.0, TICK_S - 0.05))
    second = _look(gpus)
    result = [each for each in readings if isinstance(each, list)]
    if not result:
        raise Failed(readings[0]["error"] if readings else "no reading")
    return {
        "seconds": time.monotonic() - begun,
        "ticks": TICKS,
        "readings": readings,
        "states": states,
        "first": first,
        "second": second,
        "processes": gpus.processes(),
        "page": os.sysconf("SC_PAGE_SIZE"),
    }


def _reading(gpus: "Nvml | Smi") -> "Any":
    """Return the rows of one reading, or {"error": reason}."""
    try:
        return gpus.read(traffic=True)
    except Failed as failed:
        return {"error": str(failed)}


def _state(pid: str) -> str:
    """Return a process's state, one letter such as R, S or D; `-` if it has ended."""
    words = (read_or_none("/proc/" + pid + "/stat", 4096) or "").rpartition(")")[2].split()
    return words[0] if words else "-"


def _look(gpus: "Nvml | Smi") -> "Values":
    """Return counters of processors, paging, pressure, disks, network and programs, read once."""
    return {
        "cpus": _cpus(),
        "vm": dict(re.findall(r"^(pswpin|pswpout|pgmajfault) (\d+)$", read("/proc/vmstat"), re.M)),
        "pressure": {name: _pressure(name) for name in ("cpu", "io", "memory")},
        "disks": _disks(),
        "network": _network(),
        "programs": _programs(gpus),
    }


def _cpus() -> "dict[str, list[int]]":
    """Return processor -> [busy, waiting for disks, all] since boot, in ticks."""
    found = {}
    for name, rest in re.findall(r"^(cpu\d+) ([\d ]+)$", read("/proc/stat"), re.M):
        ticks = [int(each) for each in rest.split()]
        found[name[3:]] = [sum(ticks[:3]) + sum(ticks[5:8]), ticks[4], sum(ticks[:8])]
    return found


def _pressure(name: str) -> "int | None":
    """Return the microseconds since boot in which some task waited; None without pressure information."""
    found = re.search(r"(?m)^some .*total=(\d+)$", read_or_none("/proc/pressure/" + name) or "")
    return int(found.group(1)) if found else None


def _disks() -> "dict[str, list[int]]":
    """Return device -> sectors read and written, milliseconds busy (Documentation/admin-guide/iostats),
    without loop and RAM devices.
    """
    found = {}
    for line in (read_or_none("/proc/diskstats") or "").splitlines():
        words = line.split()
        if len(words) > 12 and not words[2].startswith(("loop", "ram")):
            found[words[2]] = [int(words[5]), int(words[9]), int(words[12])]
    return found


def _network() -> "dict[str, list[Any]]":
    """Return interface or RDMA `device/port` -> [bytes received, bytes sent, bit/s or None]."""
    found = {}
    for name, rest in re.findall(r"^\s*([^:\s]+):(.*)$", read("/proc/net/dev"), re.M):
        words = rest.split()
        if name != "lo" and len(words) > 8:
            speed = (read_or_none("/sys/class/net/" + name + "/speed", 64) or "").strip()
            found[name] = [int(words[0]), int(words[8]), int(speed) * 10**6 if speed.isdecimal() else None]
    for folder in glob.glob("/sys/class/infiniband/*/ports/*"):
        counts = [
            (read_or_none(folder + "/counters/port_" + way + "_data", 64) or "").strip()
            for way in ("rcv", "xmit")
        ]
        rate = re.match(r"\d+", read_or_none(folder + "/rate", 64) or "")
        if all(count.isdecimal() for count in counts):
            name = folder.split("/")[4] + "/" + folder.split("/")[6]
            # Both counters count units of four bytes (InfiniBand architecture, PortCounters).
            found[name] = [
                int(counts[0]) * 4,
                int(counts[1]) * 4,
                int(rate.group()) * 10**9 if rate else None,
            ]
    return found


def _programs(gpus: "Nvml | Smi") -> "dict[str, Values]":
    """Return pid -> counters of programs on GPUs and of their children.

    `holder` is the pid that uses the GPU. This process is left out; there are at most `PROGRAMS_AT_MOST`, of
    users in turn.
    """
    parents = {}
    for pid in filter(str.isdecimal, names_in("/proc")):
        words = (read_or_none("/proc/" + pid + "/stat", 4096) or "").rpartition(")")[2].split()
        if len(words) > 1:
            parents[pid] = words[1]
    used = users_of(r"nvidia\d+")
    devices = {pid: sorted(int(name[6:]) for name in names) for pid, names in used.items() if pid in parents}
    holders = set(devices)
    for rows in gpus.processes().values():
        holders.update(str(pid) for pid, _ in rows if str(pid) in parents)
    above = {}
    for pid in parents:
        holder, steps = pid, 0
        while holder not in holders and holder in parents and steps < 16:
            holder, steps = parents[holder], steps + 1
        if holder in holders:
            above[pid] = holder

    people = People()

    def row(pid: str) -> "tuple[str, Values]":
        return pid, dict(_program(pid, people), holder=above[pid], gpus=devices.get(pid, []))

    return dict(people.rows(above, row, PROGRAMS_AT_MOST, PROGRAM_SIZE))


def _program(pid: str, people: People) -> "Values":
    """Return name, threads, bytes read, kernel function, processors, quota and variables of a process.

    None, "" or empty for what cannot be read.
    """
    folder = "/proc/" + pid + "/"
    io = dict(re.findall(r"^(\w+): (\d+)$", people.read(pid, "io", 4096) or "", re.M))
    status = read_or_none(folder + "status") or ""
    allowed = re.search(r"(?m)^Cpus_allowed_list:\s*(\S+)$", status)
    return {
        "name": (read_or_none(folder + "comm") or "").strip(),
        "threads": _threads(folder),
        "read": int(io["read_bytes"]) if "read_bytes" in io else None,
        "rchar": int(io["rchar"]) if "rchar" in io else None,
        "waits": (read_or_none(folder + "wchan", 256) or "").strip(),
        "allowed": allowed.group(1) if allowed else "",
        "quota": _quota(folder),
        "variables": variables_of(pid, WANTED, people),
    }


def _threads(folder: str) -> "dict[str, list[Any]]":
    """Return thread -> [name, ticks of processor time], for up to 256 threads."""
    found = {}
    for number in names_in(folder + "task")[:THREADS_AT_MOST]:
        text = read_or_none(folder + "task/" + number + "/stat", 4096) or ""
        words = text.rpartition(")")[2].split()
        if len(words) > 12:
            found[number] = [text.partition("(")[2].rpartition(")")[0], int(words[11]) + int(words[12])]
    return found


def _quota(folder: str) -> "str | None":
    """Return cpu.max of the program's control group (version 2); None without it."""
    group = re.search(r"(?m)^0::(/.+)$", read_or_none(folder + "cgroup") or "")
    return (
        (read_or_none("/sys/fs/cgroup" + group.group(1) + "/cpu.max", 64) or "").strip() or None
        if group
        else None
    )
