"""The common part of upgrades and repairs: their leases, an attempt at a step, their result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar, Generic, TypeVar

from gpuprov.errors import Exit, GpuprovError, Refused
from gpuprov.model.nodeset import fold, fold_alike
from gpuprov.model.rollout import Window
from gpuprov.ssh.contained import contained
from gpuprov.ssh.dispatch import CrewLost
from gpuprov.upgrade import exclusive
from gpuprov.upgrade.context import UpgradeContext
from gpuprov.upgrade.header import RUN
from gpuprov.upgrade.journal import Journal
from gpuprov.upgrade.window import describe_window

EndT = TypeVar("EndT", bound=str)
ContextT = TypeVar("ContextT", bound=UpgradeContext)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Outcome(Generic[EndT]):
    """Result of a run: node → end, failed node → reason, and in `stopped` why the run ended early."""

    ends: dict[str, EndT]
    reasons: dict[str, str]
    stopped: str | None

    @property
    def exit_code(self) -> Exit:
        """OK if no node has a reason and the run did not end early, otherwise FAILED."""
        return Exit.FAILED if self.reasons or self.stopped else Exit.OK


class JournalledRun(Generic[ContextT]):
    """A run with leases on its nodes and a journal.

    Attributes:
        verb: the command that resumes it.
        lost: node that this run does not hold → the error; no further step is taken on it.
    """

    verb: ClassVar[str]

    def __init__(self, context: ContextT, journal: Journal) -> None:
        self.leases = exclusive.leases_for(context)
        self.context, self.journal = replace(context, leases=self.leases), journal
        self.lost: dict[str, GpuprovError] = {}

    def lease(self, nodes: Sequence[str], *, begun: bool) -> None:
        """Take the leases of the nodes, at the begin of a run of all or of none.

        In a run that has begun, a node that another run holds only misses its own steps: it must not prevent
        those of nodes that are out of service.

        Raises:
            Refused: another run holds a node, and this one has not begun.
        """
        if begun:
            self.leases.take(nodes)
        else:
            exclusive.take_all(self.leases, nodes, self.context.narrate)

    def held(self, nodes: Iterable[str]) -> list[str]:
        """Return those of the nodes that this run holds, before a step; add the others to `lost`."""
        asked = list(nodes)
        gone = exclusive.lost(self.leases, asked, self.context.narrate)
        for names, said in fold_alike((name, str(error)) for name, error in gone.items()):
            self.context.narrate(f"no further step on {names}: {said}")
        self.lost.update(gone)
        return [name for name in asked if name not in gone]

    def refuse_lost(self, unfinished: Iterable[str]) -> None:
        """Raise Refused for the unfinished nodes that this run has lost, if any: it can be resumed."""
        if left := {name: self.lost[name] for name in unfinished if name in self.lost}:
            raise exclusive.refusal(left)

    def attempt(
        self, step: str, nodes: list[str], title: str, act: Callable[[ContextT, list[str], Path], ResultT]
    ) -> tuple[ResultT | GpuprovError, float]:
        """Run a step on nodes of `held`, with its beginning in the journal; return result and seconds.

        The result is an error if the whole step failed.

        Raises:
            CrewLost: no worker is available any more; a resumed run repeats the step.
        """
        self.context.narrate(f"{title} {fold(nodes)}")
        self.journal.write(step, "begun", nodes)
        # A new folder each time: the folder of an interrupted attempt contains its events.
        folder = Path(mkdtemp(prefix=f"{len(self.journal.entries):04}-{step}-", dir=self.context.folder))
        begun = time.monotonic()
        result = contained(fold(nodes), lambda: act(self.context, nodes, folder))
        if isinstance(result, CrewLost):
            raise CrewLost(result.seen, do=f"start it again, then: {self._resume} --workers …")
        return result, round(time.monotonic() - begun, 1)

    def refuse_closed(self, window: Window, before: str) -> Refused:
        """Release the leases; return the refusal as the window closed before nodes or a batch."""
        self.leases.release()
        return Refused(
            f"the window has closed before {before}", expected=describe_window(window), do=self._resume
        )

    def conclude(self, outcome: Outcome[EndT]) -> Outcome[EndT]:
        """Release the leases, write the result into the journal, and return it."""
        self.leases.release()
        result = {"ends": outcome.ends, "reasons": outcome.reasons, "stopped": outcome.stopped}
        self.journal.write(RUN, "done" if outcome.exit_code == Exit.OK else "failed", data=result)
        return outcome

    @property
    def _resume(self) -> str:
        """The command that resumes this run."""
        return f"gpuprov {self.verb} --resume {self.context.id}"
