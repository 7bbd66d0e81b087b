"""Memory between runs: when a fault counts, and when it is gone.

Times are seconds since boot, including suspended time: no change of the clock affects them. The memory is
lost at a reboot, after which a fault has to be seen again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpuprov.doctor.fault import CLASSES, Class

CONFIRMED = 2
"""Number of runs that have to see a fault before it counts (our choice: what is being started or replaced
looks like a fault for one run, and the second run comes after one interval).
"""
RECENT = 2.5
"""Intervals in which these runs have to be: a fault that every second run sees counts."""
RECENT_LEAST_S = 120.0
"""Least time for that: a run that waits for nvidia-smi takes half a minute at any interval."""
APART = 0.5
"""Intervals that have to pass between these runs: each end of a job starts one, and a job that fails at once
is followed by the next.
"""
ABSENT = 2
"""Least number of runs without a fault before it is gone, however long they are apart."""
DRAINING: tuple[Class, ...] = ("isolate", "reset")
"""Classes with which no job may start."""
TEXT = 300
"""Maximum length of a fault's text in characters."""
REMEMBERED = 200
"""Maximum number of remembered faults; the table has fewer rules and classes."""


@dataclass(frozen=True)
class Sight:
    """A rule's faults of one class in one run: their number, the text of the first, and its remedy.

    Attributes:
        place: its place among all faults of the run, causes first.
    """

    rule: str
    health: Class
    text: str
    mend: str = ""
    count: int = 1
    place: int = 0


@dataclass
class Remembered:
    """A fault over several runs.

    Attributes:
        first, last: times of its first and last sight.
        previous: time of the sight before the last; None for one sight.
        counts: whether it was confirmed.
        absent: number of runs since its last sight.
        place: its place among all faults of the run that saw it last, causes first.
        stays: whether it stays until a restart, because its message may have been lost since.
    """

    rule: str
    health: Class
    text: str
    mend: str
    first: float
    last: float
    previous: float | None = None
    counts: bool = False
    absent: int = 0
    place: int = 0
    stays: bool = False


@dataclass
class Memory:
    """All remembered faults.

    Attributes:
        faults: `RULE CLASS` → the fault.
        gone_since: time of the last sight of a fault with which no job may start, or of the first run.
        ran: time of the last run.
        wall: clock of the last run minus its time since boot.
        busy_s: seconds for which the node was being changed, less those since in which it was not.
        paused: whether faults did not count in the last run.
        verdict, since: the last verdict, and since when it is unchanged.
    """

    faults: dict[str, Remembered] = field(default_factory=dict)
    gone_since: float | None = None
    ran: float | None = None
    wall: float | None = None
    busy_s: float = 0.0
    paused: bool = False
    verdict: str = ""
    since: float = 0.0

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Memory:
        """Return the memory that `as_dict` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is not as `as_dict` writes it.
        """
        faults = {str(name): Remembered(**row) for name, row in value["faults"].items()}
        if any(each.health not in CLASSES for each in faults.values()):
            raise ValueError("a class that is not known")
        return cls(**{**value, "faults": faults})

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    def take(
        self,
        sights: Iterable[Sight],
        *,
        now: float,
        interval: float,
        hold: float,
        unknown: Collection[str] = (),
        partly: Collection[str] = (),
        paused: bool = False,
    ) -> None:
        """Take what a run saw.

        A fault counts from its second sight within `RECENT` intervals on, at least `APART` intervals after
        its first one. It is gone when no run, of at least `ABSENT`, has seen it for `hold` seconds; one that
        does not count yet after `RECENT` intervals.

        Args:
            unknown: rules that could not judge: their faults stay.
            partly: rules that have not had all messages of the kernel: their faults that count stay until a
                restart, also when it has all again, without those that were lost.
            paused: whether faults do not count now, because the node has just booted or is being changed. One
                that counts already stays; any other has to be seen again after the pause.
        """
        if paused or self.paused:
            self.faults = {name: fault for name, fault in self.faults.items() if fault.counts}
        self.paused = paused
        recent = max(RECENT * interval, RECENT_LEAST_S)
        if self.gone_since is None:
            self.gone_since = now
        for sight in sights:
            self._see(sight, now, 0.0 if paused else recent, APART * interval)
        for name, fault in list(self.faults.items()):
            fault.stays |= fault.counts and fault.rule in partly
            if fault.last == now or fault.stays or fault.rule in unknown or fault.rule in partly:
                continue
            fault.absent += 1
            patience = hold if fault.counts else recent
            if now - fault.last >= patience and fault.absent >= ABSENT:
                del self.faults[name]
        self.ran = now

    def _see(self, sight: Sight, now: float, recent: float, apart: float) -> None:
        """Remember one sight; it confirms a fault whose last sight is at most `recent` seconds old, and its
        first one at least `apart` seconds.

        A new fault is left out if `REMEMBERED` others are known. A confirmed one that drains sets
        `gone_since`.
        """
        name = f"{sight.rule} {sight.health}"
        fault = self.faults.get(name)
        if fault is None:
            if len(self.faults) >= REMEMBERED:
                return
            fault = self.faults[name] = Remembered(sight.rule, sight.health, "", "", now, now)
        else:
            fault.previous, fault.last, fault.absent = fault.last, now, 0
        more = f" (and {sight.count - 1} more)" if sight.count > 1 else ""
        fault.text, fault.mend = sight.text[: TEXT - len(more)] + more, sight.mend[:TEXT]
        fault.place = sight.place
        again = fault.previous is not None and now - fault.previous <= recent and now - fault.first >= apart
        fault.counts = fault.counts or again
        if fault.counts and fault.health in DRAINING:
            self.gone_since = now

    def counting(self) -> list[Remembered]:
        """Return the faults that count: those with which no job may start, then others, causes first."""
        return _in_order(fault for fault in self.faults.values() if fault.counts)

    def suspected(self) -> list[Remembered]:
        """Return the faults that have not been confirmed, in the same order."""
        return _in_order(fault for fault in self.faults.values() if not fault.counts)


def _in_order(faults: Iterable[Remembered]) -> list[Remembered]:
    """Return faults with which no job may start, then others by class; causes before their consequences."""

    def key(fault: Remembered) -> tuple[int, int, str]:
        level = 0 if fault.health in DRAINING else CLASSES.index(fault.health)
        return level, fault.place, fault.rule

    return sorted(faults, key=key)
