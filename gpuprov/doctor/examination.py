"""Examination of a machine: its facts, and further collectors of the doctor."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from gpuprov.probe.facts import Facts, Missing, part
from gpuprov.probe.node.kernel_messages import OF_DEVICES
from gpuprov.probe.parse.gpu import Gpu
from gpuprov.probe.parse.health import Health, parse_health
from gpuprov.untrusted.numbers import finite
from gpuprov.untrusted.parsing import whole_number


def age(seconds: float) -> str:
    """Return a duration as text: `40 s`, `12 min`, `3 h`, `5 days`; a unit is used from two of it on."""
    for size, word in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the kernel log. `age_s`: seconds before the examination."""

    age_s: float
    text: str

    def quoted(self, most: int | None = None) -> str:
        """Return the line as evidence of a fault, with at most so many characters of its text."""
        return f"kernel log: {self.text[:most]}"

    def dated(self, most: int) -> str:
        """Return the line as evidence with its age, with at most so many characters of its text."""
        return f"kernel log, {age(self.age_s)} ago: {self.text[:most]}"


@dataclass(frozen=True, slots=True)
class Port:
    """One PCIe device between a GPU and the root. Speeds in GT/s, widths in lanes; 0 is unknown."""

    address: str
    driver: str | None
    speed: float
    max_speed: float
    width: int
    max_width: int
    bars: tuple[int, ...]
    unplaced: tuple[int, ...]
    """Numbers of BARs without an address."""
    lost: bool | None
    """Whether its configuration space reads all ones."""
    acs: bool | None
    """Whether ACS redirects peer traffic to the root; `None` without ACS, or without root's rights."""
    iommu_type: str | None


@dataclass(frozen=True, slots=True)
class Program:
    """A program that uses a GPU."""

    pid: int
    name: str
    state: str
    uid: int | None
    cpus: str
    waits: str
    gpus: tuple[str, ...]
    memlock: str | None
    nofile: str | None
    variables: Mapping[str, str]
    is_kept: bool
    """Whether its user keeps the kernel from telling its variables, or those of an earlier program."""
    own_namespace: bool


PROGRAMS, DEVICES = 64, 64
"""Maximum numbers of programs, which is also the probe's, and of device files of a program; further ones are
ignored.
"""
NAME, CPU_LIST = 200, 4096
"""Characters of a program's name and state, and of a list of processors, that are read; the kernel's names
have up to 127.
"""
COMPLETE_S = 24 * 3600
"""Seconds of the kernel log that are enough without its beginning: a journal removes it by its size."""
LOG_LINE = 1000
"""Characters of a line of a log or of a tool's output that are searched; the probe sends at most 600 of the
kernel log.
"""

_QUOTED = re.compile(r"(?s)(\bname=|\bcomm )(?!<unknown>).{1,15}|(?<=NVRM: API mismatch).+")
"""Name of a program in a message about a device, as in Xids and those of ext4, with at most 15 characters;
and what a program states of itself in the message that its version is another one than the driver's.
"""
_INDENTED = re.compile(r"\ANVRM: {2,}")
_SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{2,63}")
_UNSET = re.compile(r"(?i)default|filled|none|unknown|(?:0*1?2?3?4?5?6?7?8?9?0*|n/?a|(.)\1*)\Z")
"""Texts of firmware whose maker has set no serial number."""


class Examination(Facts):
    """Facts with values of more collectors (`CLOSER_PROBE`); its properties raise as those of `Facts`."""

    @property
    def kernel_log(self) -> tuple[LogLine, ...]:
        """Relevant lines of the kernel log, oldest first, each cut at `LOG_LINE` characters; counted in
        `searches`.
        """
        self.__dict__["_searches"] = self.searches + 1
        return self._kernel_log

    @property
    def searches(self) -> int:
        """The number of times that the kernel log was searched."""
        return int(self.__dict__.get("_searches", 0))

    @property
    def collected(self) -> datetime:
        """The time of the collection. Python 3.9 and 3.10 read no `Z` as a time zone."""
        return datetime.fromisoformat(self.collected_at.replace("Z", "+00:00"))

    @property
    def is_log_whole(self) -> bool:
        """Whether the kernel log has all messages of this boot, or was not read."""
        log = self.collectors.get("kernel_log")
        return not isinstance(log, dict) or log.get("since") is None

    @property
    def unread(self) -> str:
        """The reason why a rule that has searched the kernel log does not know all faults; empty if the log
        has all messages of this boot, or of the last `COMPLETE_S`.
        """
        if self.is_log_whole or "kernel_log" in self.missing:
            return ""
        now, since = self.collected, self.collectors["kernel_log"]["since"]
        age = now.timestamp() - since if isinstance(since, (int, float)) else math.nan
        if not age >= 0:
            return "messages of the kernel may be missing"
        if age >= COMPLETE_S:
            return ""
        begun = now - timedelta(seconds=age)
        return f"messages of the kernel from before {begun:%Y-%m-%d %H:%M} may be missing"

    @part
    def _kernel_log(self) -> tuple[LogLine, ...]:
        """The value of `kernel_log`, read once."""
        raw = self.raw("kernel_log")
        now = self.collected.timestamp()
        rows = ((finite(stamp), str(text)[:LOG_LINE]) for stamp, text in raw["kept"])
        return tuple(LogLine(max(0.0, now - stamp), text) for stamp, text in rows)

    def log_lines(self, *patterns: str) -> list[LogLine]:
        """Return messages of drivers and about devices in the kernel log that match one of the patterns.

        Messages about programs do not count, and names of programs in the others match no pattern: a user of
        the node chooses them.

        Each `.*` of a pattern separates parts that are searched one after the other: the time of a regular
        expression with several repeats would grow with the square of a line.

        Raises:
            Missing: the log could not be read.
        """
        return _matching(self._of_devices if self.kernel_log else (), patterns)

    @part
    def _of_devices(self) -> list[tuple[LogLine, str]]:
        """Messages of drivers and about devices in the kernel log, with their text without program names, and
        with one blank after the driver's name: some lines of its longer messages have two.
        """
        devices = (line for line in self._kernel_log if OF_DEVICES.match(line.text))
        return [(line, _INDENTED.sub("NVRM: ", _QUOTED.sub(r"\1", line.text))) for line in devices]

    def program_lines(self, *patterns: str) -> list[LogLine]:
        """Return lines of the kernel log that match one of the patterns, also messages about programs.

        A user of the node can cause them: a fault by them is at most watched.
        """
        return _matching(((line, line.text) for line in self.kernel_log), patterns)

    @part
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs of nvidia-smi; none if PCI has no NVIDIA GPU.

        Raises:
            Missing: it failed and listed no GPU.
        """
        if not self.pci_gpus:
            return ()
        if self.smi.error and not self.smi.gpus:
            raise Missing("smi", self.smi.error)
        return self.smi.gpus

    @part
    def health(self) -> tuple[Health, ...]:
        """Health of the GPUs that nvidia-smi lists, from the same answer; () without any. Raises as
        `parse_health`.
        """
        if not self.gpus:
            return ()
        return parse_health(self.raw("smi")["stdout"])

    @part
    def has_gpus(self) -> bool:
        """Whether there are NVIDIA GPUs on the bus; without any, no driver is needed."""
        return bool(self.pci_gpus)

    @part
    def pci_links(self) -> Mapping[str, tuple[Port, ...]]:
        """GPU, NVSwitch or RDMA device → itself and the ports above it."""
        rows = self.raw("pci_links")
        return {address: tuple(_port(each) for each in chain) for address, chain in rows.items()}

    @part
    def programs(self) -> tuple[Program, ...]:
        """Programs that use GPUs."""
        return tuple(_program(row) for row in islice(self.raw("programs")["holders"], PROGRAMS))

    @part
    def growth(self) -> Mapping[str, int]:
        """Counters that grew during the examination → their growth per second, rounded up; others are left
        out.
        """
        raw = self.raw("counters")
        seconds = max(0.01, finite(raw["seconds"]))
        first, second = raw["first"], raw["second"]
        grown = {name: int(value) - int(first.get(name, 0)) for name, value in second.items()}
        return {name: math.ceil(by / seconds) for name, by in grown.items() if by > 0}

    @part
    def counters(self) -> Mapping[str, int]:
        """Counter → its current value."""
        return {str(name): int(value) for name, value in self.raw("counters")["second"].items()}

    @part
    def meminfo(self) -> Mapping[str, int]:
        """/proc/meminfo in KiB (huge pages: their number)."""
        text = self.raw("host_state")["memory"]
        return {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d{1,18})", text, re.M)}

    @part
    def in_container(self) -> bool:
        """Whether this is a container, from which much of the host is hidden."""
        return "container" in str(self.raw("host_state")["virtual"])

    @part
    def virtual(self) -> bool:
        """Whether the machine is virtual, by the processor's flag `hypervisor`."""
        return "hypervisor" in str(self.raw("host_state")["virtual"])

    @part
    def serial(self) -> str | None:
        """Serial number of the chassis or board as the firmware states it; None for an unset one."""
        found = (str(each).strip() for each in self.raw("host_state").get("serials", ()))
        return next((each for each in found if _SERIAL.fullmatch(each) and not _UNSET.match(each)), None)

    @part
    def library_version(self) -> str | None:
        """Version of the libnvidia-ml.so.1 that the loader finds; `None` without one."""
        return self.taken("libnvidia-ml.so.1")

    def taken(self, name: str) -> str | None:
        """Return the version of a driver library that the loader finds, from the target of its link; None if
        it finds none or the target has no version.
        """
        path = self.raw("libraries")["taken"].get(name)
        found = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)\Z", path or "")
        return found[1] if found else None


def _matching(lines: Iterable[tuple[LogLine, str]], patterns: tuple[str, ...]) -> list[LogLine]:
    """Return the lines whose text matches one of the patterns."""
    wanted = [[re.compile(part) for part in pattern.split(".*")] for pattern in patterns]
    return [line for line, text in lines if any(_in_order(text, parts) for parts in wanted)]


def _in_order(text: str, parts: list[re.Pattern[str]]) -> bool:
    """Return whether a text has a match of each part after that of the part before."""
    at = 0
    for part_of in parts:
        found = part_of.search(text, at)
        if found is None:
            return False
        at = found.end()
    return True


def _port(row: Mapping[str, Any]) -> Port:
    """Parse a row of the collector `pci_links`."""
    return Port(
        address=str(row["address"]),
        driver=row.get("driver"),
        speed=_number(row.get("current_link_speed")),
        max_speed=_number(row.get("max_link_speed")),
        width=int(_number(row.get("current_link_width"))),
        max_width=int(_number(row.get("max_link_width"))),
        bars=tuple(int(size) for size in row.get("bars") or ()),
        unplaced=tuple(int(number) for number in row.get("unplaced") or ()),
        lost=row.get("lost"),
        acs=row.get("acs"),
        iommu_type=row.get("iommu_type"),
    )


def _number(text: object) -> float:
    """Parse `32.0 GT/s PCIe` → 32.0; 0 for an unknown value (`Unknown`, or 255 lanes of a virtual device)."""
    found = re.match(r"\d{1,4}(?:\.\d{1,3})?", str(text or ""))
    value = float(found[0]) if found else 0.0
    return 0.0 if value == 255 else value


def _program(row: Mapping[str, Any]) -> Program:
    """Parse a row of the collector `programs`, with texts and the list of GPUs cut to their limits."""
    uid = str(row.get("uid") or "")
    return Program(
        pid=int(row["pid"]),
        name=str(row.get("name") or "")[:NAME],
        state=str(row.get("state") or "")[:NAME],
        uid=whole_number(uid),
        cpus=str(row.get("cpus") or "")[:CPU_LIST],
        waits=str(row.get("waits") or "")[:NAME],
        gpus=tuple(islice(dict.fromkeys(str(device)[:NAME] for device in row.get("gpus") or ()), DEVICES)),
        memlock=row.get("memlock"),
        nofile=row.get("nofile"),
        variables={str(name): str(value) for name, value in (row.get("variables") or {}).items()},
        is_kept=row.get("variables", {}) is None,
        own_namespace=bool(row.get("own_namespace", True)),
    )
