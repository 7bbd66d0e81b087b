"""A lease as a node reports it: the run that holds the node, its owner, its start and its end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuprov.apply.node.lease import ATTEMPT_S, LONGEST_S, family
from gpuprov.errors import Refused
from gpuprov.untrusted.numbers import finite

RESUMABLE = ("upgrade", "rollback", "repair")
LONGEST = 100
"""Maximum length of a name in characters, because the node's answer is untrusted input."""


class HeldByWorker(Refused):
    """Refusal because another attempt of the same run holds the node; it is possible to wait for it."""


@dataclass(frozen=True)
class Lease:
    """Lease of a node.

    Attributes:
        run: id of the run or worker attempt.
        holder: user and machine that took the lease.
        since: start by this controller's clock; None if the node does not know it.
        until: end by this controller's clock.
        silent_s: seconds since the last renewal.
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
        """Text for the user about how to get a node that another run has leased."""
        resumable = any(f"-{verb}-" in self.run for verb in RESUMABLE)
        if self.is_attempt and not resumable:
            where = f"run the same command on the same controller, {ATTEMPT_S:.0f} s later"
            return f"wait for its worker; if that ended or lost its connection: {where}"
        return "wait for it, or resume it there" if resumable else "wait for it, or interrupt it there"

    @property
    def family(self) -> str:
        """Id of the run itself, also if one of its worker attempts holds the node."""
        return family(self.run)

    @property
    def is_attempt(self) -> bool:
        """Whether a worker attempt holds the node, and not the run itself."""
        return self.run != self.family

    @property
    def is_renewed(self) -> bool:
        """Whether a worker attempt holds the node and was not silent for `ATTEMPT_S`; for a run its
        controller knows that.
        """
        return self.is_attempt and self.silent_s < ATTEMPT_S

    def refusal(self, run: str = "") -> Refused:
        """Return the refusal for another run; `HeldByWorker` if `run` is the lease's own run."""
        if run == self.family:
            return HeldByWorker(
                str(self), do="wait for that worker or end it, then run the same command again"
            )
        return Refused(str(self), do=self.advice)


def read_lease(result: Any) -> Lease | None:
    """Parse a lease from the node's program `gpuprov.apply.node.lease`; return None if no run holds one.

    The node's durations are converted to times by this controller's clock; names are cut at `LONGEST`.

    Raises:
        TypeError, KeyError, ValueError, OverflowError, NodeFailed: it is not a lease, or is longer than
            `LONGEST_S`.
    """
    if result is None:
        return None
    here = datetime.now().astimezone()
    left_s, silent_s = finite(result["left_s"]), finite(result["silent_s"])
    if not (0 <= left_s <= LONGEST_S and silent_s >= 0):
        raise ValueError(f"a lease of {left_s} s that was silent for {silent_s} s")
    had_s = result["had_s"]
    since = None if had_s is None else here - timedelta(seconds=finite(had_s))
    run, holder = (str(result[name])[:LONGEST] for name in ("run", "holder"))
    return Lease(run, holder, since, here + timedelta(seconds=left_s), silent_s)


def _clock(moment: datetime) -> str:
    """Return the time as `14:02`, with the date if it is not today's."""
    today = moment.date() == datetime.now().astimezone().date()
    return moment.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")
