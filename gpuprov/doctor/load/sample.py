"""A sample over some seconds, parsed for load rules: means, shares, rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from statistics import fmean
from typing import Any

from gpuprov.doctor.examination import CPU_LIST, NAME
from gpuprov.untrusted.numbers import finite
from gpuprov.untrusted.parsing import whole_number

_LANE_KB = {1: 250e3, 2: 500e3, 3: 984.6e3, 4: 1969.2e3, 5: 3938.5e3, 6: 7563e3}
"""kB/s and lane in one direction, by PCIe generation (PCI-SIG's base specifications)."""
PROGRAMS, GPUS, PORTS = 400, 64, 256
"""Maximum numbers of programs, which is also the probe's, of GPUs, and of interfaces and RDMA ports: rules
compare each with each. Further ones are ignored.
"""
THROTTLED = {
    8: "HW slowdown",
    16: "sync boost",
    32: "SW thermal slowdown",
    64: "HW thermal slowdown",
    128: "HW power brake",
}
"""Bits of NVML's clocks event reasons (nvml.h) that reduce the speed.
1 idle, 2 set clocks and 4 power cap do not count.
"""


@dataclass(frozen=True)
class GpuLoad:
    """One GPU's means. Shares from 0 to 1; `None` if the driver does not report the value."""

    index: int
    name: str
    busy: float | None
    """Share of the time in which some kernel ran."""
    memory_busy: float | None
    power_w: float | None
    power: float | None
    """Share of the limit."""
    clock: float | None
    """Share of the maximal SM clock."""
    memory: float | None
    used_mib: float | None
    reasons: int
    """Bits of NVML's clocks event reasons that were set at any time."""
    reasons_share: Mapping[int, float]
    traffic: float | None
    """Share of the PCIe link's rate, the busier direction."""
    traffic_gbs: float | None
    spread: float
    """Difference between the highest and the lowest reading of `busy`."""


@dataclass(frozen=True)
class ProgramLoad:
    """One program and its children. `cores` in cores; shares from 0 to 1."""

    pid: int
    name: str
    holder: int
    gpus: tuple[int, ...]
    cores: float
    busiest: float
    """The busiest thread's share of a core."""
    busiest_name: str
    asleep: float
    """Share of the readings in uninterruptible sleep."""
    read_mbs: float | None
    waits: str
    allowed: str
    quota: str | None
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Sample:
    """Raw values of the collector `load`, parsed on access."""

    raw: Mapping[str, Any]

    @cached_property
    def seconds(self) -> float:
        """Duration of the sample in seconds, at least 0.001."""
        return max(finite(self.raw["seconds"]), 0.001)

    @cached_property
    def gpus(self) -> tuple[GpuLoad, ...]:
        """The GPUs of all readings, by index, at most `GPUS`."""
        rows: dict[int, list[Mapping[str, Any]]] = {}
        for reading in self.raw["readings"]:
            for row in reading if isinstance(reading, list) else ():
                rows.setdefault(int(row["index"]), []).append(row)
        return tuple(_gpu(index, readings) for index, readings in sorted(rows.items())[:GPUS])

    @cached_property
    def programs(self) -> tuple[ProgramLoad, ...]:
        """Programs on GPUs and their children that ran at the begin and the end of the sample, at most
        `PROGRAMS`.
        """
        first, second = self.raw["first"]["programs"], self.raw["second"]["programs"]
        of: dict[str, set[int]] = {}
        for index, rows in self.raw["processes"].items():
            for pid, _ in rows:
                of.setdefault(str(pid), set()).add(int(index))
        both = islice(((pid, row) for pid, row in second.items() if pid in first and _is_pid(pid)), PROGRAMS)
        return tuple(self._program(pid, first[pid], row, of.get(pid, set())) for pid, row in both)

    def _program(
        self, pid: str, before: Mapping[str, Any], now: Mapping[str, Any], gpus: set[int]
    ) -> ProgramLoad:
        """Return one program's means from its rows at the begin and the end; threads that began meanwhile
        count as 0.
        """
        per_core = finite(self.raw["ticks"]) * self.seconds
        shares = {
            number: (name, (ticks - (before["threads"].get(number) or [name, ticks])[1]) / per_core)
            for number, (name, ticks) in now["threads"].items()
        }
        busiest = max(shares.values(), key=lambda each: each[1], default=("", 0.0))
        states = str(self.raw["states"].get(pid, ""))
        read = None
        if now.get("read") is not None and before.get("read") is not None:
            read = (int(now["read"]) - int(before["read"])) / self.seconds / 1e6
        return ProgramLoad(
            pid=int(pid),
            name=str(now["name"])[:NAME],
            holder=int(now["holder"]),
            gpus=tuple(sorted(gpus or set(map(int, now.get("gpus") or ()))))[:GPUS],
            cores=sum(share for _, share in shares.values()),
            busiest=busiest[1],
            busiest_name=str(busiest[0])[:NAME],
            asleep=states.count("D") / len(states) if states else 0.0,
            read_mbs=read,
            waits=str(now.get("waits") or "")[:NAME],
            allowed=str(now.get("allowed") or "")[:CPU_LIST],
            quota=now.get("quota"),
            variables=dict(now.get("variables") or {}),
        )

    @cached_property
    def cores(self) -> Mapping[str, float]:
        """Processor → share of the time in which it was busy."""
        return {name: busy for name, (busy, _) in self._cpus.items()}

    @cached_property
    def iowait(self) -> float:
        """Share of the processors' time spent waiting for disks."""
        return fmean([wait for _, wait in self._cpus.values()] or [0.0])

    @cached_property
    def _cpus(self) -> Mapping[str, tuple[float, float]]:
        """Processor → shares of the time in which it was busy, and in which it waited for disks."""
        first, second = self.raw["first"]["cpus"], self.raw["second"]["cpus"]
        shares = {}
        for name, now in second.items():
            before = first.get(name, now)
            whole = max(1, now[2] - before[2])
            shares[name] = ((now[0] - before[0]) / whole, (now[1] - before[1]) / whole)
        return shares

    def pressure(self, name: str) -> float:
        """Return the share of the time in which some task waited for `cpu`, `io`
        or `memory`; 0 if unknown.
        """
        before, now = self.raw["first"]["pressure"].get(name), self.raw["second"]["pressure"].get(name)
        return 0.0 if before is None or now is None else (int(now) - int(before)) / 1e6 / self.seconds

    def swapped(self) -> float:
        """Return the pages swapped in or out per second."""
        first, second = self.raw["first"]["vm"], self.raw["second"]["vm"]
        return sum(
            int(second[name]) - int(first.get(name, 0)) for name in second if name.startswith("psw")
        ) / (self.seconds)

    @cached_property
    def disks(self) -> Mapping[str, tuple[float, float]]:
        """Device → share of the time busy, and MB/s read and written."""
        first, second = self.raw["first"]["disks"], self.raw["second"]["disks"]
        return {
            name: (
                (now[2] - first[name][2]) / 1000 / self.seconds,
                (now[0] + now[1] - first[name][0] - first[name][1]) * 512 / 1e6 / self.seconds,
            )
            for name, now in second.items()
            if name in first
        }

    @cached_property
    def network(self) -> Mapping[str, tuple[float, float | None]]:
        """Interface or port → GB/s in its busier direction, and the share of its rate."""
        first, second = self.raw["first"]["network"], self.raw["second"]["network"]
        found = {}
        for name, (received, sent, rate) in islice(second.items(), PORTS):
            if name in first:
                most = max(received - first[name][0], sent - first[name][1]) / self.seconds
                found[name] = (most / 1e9, most * 8 / rate if rate else None)
        return found


def _is_pid(text: str) -> bool:
    """Return whether a text is a whole number as Python prints it; ` 7` and `07` would be a second 7."""
    number = whole_number(text)
    return number is not None and str(number) == text


def _gpu(index: int, rows: Sequence[Mapping[str, Any]]) -> GpuLoad:
    """Return the means of one GPU's readings; None for a value that no reading has; the fastest link."""

    def mean(name: str) -> float | None:
        values = [finite(row[name]) for row in rows if row.get(name) is not None]
        return fmean(values) if values else None

    def share(name: str, of: str) -> float | None:
        value, whole = mean(name), mean(of)
        return None if value is None or not whole else value / whole

    def highest(name: str) -> float:
        """Return the highest value, or 0: an idle link is slower, and its first reading may be of one."""
        return max((finite(row[name]) for row in rows if row.get(name) is not None), default=0.0)

    busy = [finite(row["gpu"]) for row in rows if row.get("gpu") is not None]
    bits = [int(row["reasons"]) for row in rows if row.get("reasons") is not None]
    load, memory = mean("gpu"), mean("memory")
    lanes = _LANE_KB.get(int(highest("generation")), 0.0) * int(highest("width"))
    most = [value for value in (mean("sent_kb"), mean("received_kb")) if value is not None]
    return GpuLoad(
        index=index,
        name=str(rows[0].get("name") or ""),
        busy=None if load is None else load / 100,
        memory_busy=None if memory is None else memory / 100,
        power_w=mean("power_w"),
        power=share("power_w", "limit_w"),
        clock=share("clock", "max_clock"),
        memory=share("used_mib", "total_mib"),
        used_mib=mean("used_mib"),
        reasons=_or(bits),
        reasons_share={
            bit: sum(bool(each & bit) for each in bits) / len(bits)
            for bit in (1, 2, 4, 8, 16, 32, 64, 128, 256)
            if bits
        },
        traffic=max(most) / lanes if most and lanes else None,
        traffic_gbs=max(most) / 1e6 if most else None,
        spread=(max(busy) - min(busy)) / 100 if busy else 0.0,
    )


def _or(bits: Sequence[int]) -> int:
    """Return all bits that are set in any of the values."""
    whole = 0
    for each in bits:
        whole |= each
    return whole
