"""The leases of a run on its nodes: taken before anything moves, renewed while it goes on, given back."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence

from gpuprov.errors import GpuprovError, Refused
from gpuprov.report.words import fold
from gpuprov.upgrade.remote import act, same
from gpuprov.upgrade.trip import Trip

LEASE_S = 3600.0
"""How long a node stays taken after its controller died; a resumed run need not wait for that."""


class Leases:
    """Leases on nodes for one run."""

    def __init__(self, trip: Trip, nodes: Sequence[str]) -> None:
        self._trip, self._nodes = trip, list(nodes)
        self._taken = 0.0

    def take(self) -> None:
        """Take all of them, or none.

        Raises:
            Refused: another run holds a node. One that does not answer fails at its first step.
        """
        self._ask(self._nodes)

    def hold(self, nodes: Sequence[str]) -> None:
        """Prove, before something is done to nodes, that they are still ours.

        All of the run's are taken for longer when a good part of their time has gone.

        Raises:
            Refused: another run took one: this controller slept until its lease was over.
        """
        self._ask(self._nodes if time.monotonic() - self._taken > LEASE_S / 4 else nodes)

    def release(self) -> None:
        """Give them back. On a node that does not answer the lease ends by itself."""
        act(self._trip.old, "release", same(self._nodes, self._trip.id), self._trip.options)

    def _ask(self, nodes: Sequence[str]) -> None:
        if len(nodes) == len(self._nodes):
            self._taken = time.monotonic()
        holder = f"{os.environ.get('USER', 'root')}@{platform.node()}"
        arguments = same(nodes, self._trip.id, holder, LEASE_S)
        answers = act(self._trip.old, "take", arguments, self._trip.options)
        others = {
            name: answer
            for name, answer in answers.items()
            if not isinstance(answer, GpuprovError) and answer["run"] != self._trip.id
        }
        if others:
            self.release()
            lease = next(iter(others.values()))
            left = max(0, lease["until"] - time.time()) / 60
            raise Refused(
                f"run {lease['run']} of {lease['holder']} is at work on {fold(others)}",
                do=f"wait for it or resume it there; its lease ends in {left:.0f} minutes at the latest",
            )
