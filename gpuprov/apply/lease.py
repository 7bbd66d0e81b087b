"""A lease as a node tells it: which run has the node, whose that is, since when and until when."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuprov.apply.node.lease import HAND_S, LONGEST_S, family
from gpuprov.errors import Refused

RESUMABLE = ("upgrade", "rollback")
LONGEST = 100
"""Letters of a name; it is a node's word."""


class InOtherHands(Refused):
    """Another hand of the same run has the node: it may be waited for."""


@dataclass(frozen=True)
class Lease:
    """Who has a node. Times are this controller's; `since` is None where the node does not know it, and
    `silent_s` are the seconds since it was renewed.
    """

    run: str
    holder: str
    since: datetime | None
    until: datetime
    silent_s: float = 0.0

    def __str__(self) -> str:
        since = f", since {_clock(self.since)}" if self.since else ""
        return f"leased by {self.holder}, run {self.run}{since}, until {_clock(self.until)} unless renewed"

    @property
    def advice(self) -> str:
        """What to do about another run's lease."""
        resumable = any(f"-{verb}-" in self.run for verb in RESUMABLE)
        if self.is_hand and not resumable:
            where = f"the same command, {HAND_S:.0f} s later, where it was typed"
            return f"wait for its worker; if that died or was cut off: {where}"
        return "wait for it, or resume it there" if resumable else "wait for it, or interrupt it there"

    @property
    def family(self) -> str:
        """The run itself, where one of its hands has the node."""
        return family(self.run)

    @property
    def is_hand(self) -> bool:
        """Whether a worker's hand has it, and not the run itself."""
        return self.run != self.family

    @property
    def is_renewed(self) -> bool:
        """Whether it is a hand's that may be at work. Of a run its controller knows that."""
        return self.is_hand and self.silent_s < HAND_S

    def refusal(self, run: str = "") -> Refused:
        """Why another run, or another hand of the same one, leaves the node alone."""
        if run == self.family:
            return InOtherHands(str(self), do="wait for that worker, or end it, then the same command again")
        return Refused(str(self), do=self.advice)


def read_lease(told: Any) -> Lease | None:
    """A lease of the node's program `gpuprov.apply.node.lease`; None where no run holds one.

    Raises:
        TypeError, KeyError, ValueError, OverflowError: it is none, or longer than any lease lasts.
    """
    if told is None:
        return None
    here = datetime.now().astimezone()
    left_s, silent_s = float(told["left_s"]), float(told["silent_s"])
    if not (0 <= left_s <= LONGEST_S and 0 <= silent_s < math.inf):
        raise ValueError(f"a lease of {left_s} s that was silent for {silent_s} s")
    had_s = told["had_s"]
    since = None if had_s is None else here - timedelta(seconds=float(had_s))
    run, holder = (str(told[name])[:LONGEST] for name in ("run", "holder"))
    return Lease(run, holder, since, here + timedelta(seconds=left_s), silent_s)


def _clock(moment: datetime) -> str:
    """`14:02`, with the day where that is another one."""
    today = moment.date() == datetime.now().astimezone().date()
    return moment.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")
