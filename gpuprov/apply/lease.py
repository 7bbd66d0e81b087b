"""A lease as a node tells it: which run has the node, whose that is, since when and until when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuprov.apply.node.lease import family
from gpuprov.errors import Refused

RESUMABLE = ("upgrade", "rollback")
LONGEST = 100
"""Letters of a name; it is a node's word."""


class InOtherHands(Refused):
    """Another hand of the same run has the node: it may be waited for."""


@dataclass(frozen=True)
class Lease:
    """Who has a node. Times are this controller's; `since` is None where the node does not know it."""

    run: str
    holder: str
    since: datetime | None
    until: datetime

    def __str__(self) -> str:
        since = f", since {_clock(self.since)}" if self.since else ""
        return f"leased by {self.holder}, run {self.run}{since}, until {_clock(self.until)} unless renewed"

    @property
    def advice(self) -> str:
        """What to do about another run's lease."""
        resumable = any(f"-{verb}-" in self.run for verb in RESUMABLE)
        return "wait for it, or resume it there" if resumable else "wait for it, or interrupt it there"

    @property
    def family(self) -> str:
        """The run itself, where one of its hands has the node."""
        return family(self.run)

    def refusal(self, run: str = "") -> Refused:
        """Why another run, or another hand of the same one, leaves the node alone."""
        return (InOtherHands if run == self.family else Refused)(str(self), do=self.advice)


def read_lease(told: Any) -> Lease | None:
    """A lease of the node's program `gpuprov.apply.node.lease`; None where no run holds one.

    The node's clock may be wrong: its times count from its own `now`.

    Raises:
        TypeError, KeyError, ValueError, OverflowError: it is none.
    """
    if told is None:
        return None
    here, there = datetime.now().astimezone(), float(told["now"])

    def at(moment: Any) -> datetime:
        return here + timedelta(seconds=float(moment) - there)

    since = told.get("since")
    run, holder = (str(told[name])[:LONGEST] for name in ("run", "holder"))
    return Lease(run, holder, None if since is None else at(since), at(told["until"]))


def _clock(moment: datetime) -> str:
    """`14:02`, with the day where that is another one."""
    today = moment.date() == datetime.now().astimezone().date()
    return moment.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")
