"""Engine of a repair: steps of nodes, each in the journal before and after it.

Started again with the same journal, it continues where the journal ends. Never more nodes are out of service
than the header allows; nodes that stay out count.
"""

from __future__ import annotations

from datetime import UTC, datetime

from gpuprov.errors import GpuprovError
from gpuprov.model.nodeset import fold
from gpuprov.upgrade.journal import Journal
from gpuprov.upgrade.repair import steps
from gpuprov.upgrade.repair.context import RepairContext
from gpuprov.upgrade.repair.header import repair_header
from gpuprov.upgrade.repair.result import Result
from gpuprov.upgrade.repair.state import IDLE, STEPS, End, Progress, progress_by_node
from gpuprov.upgrade.running import JournalledRun, Outcome
from gpuprov.upgrade.state import out_of_service
from gpuprov.upgrade.window import is_open


class RepairEngine(JournalledRun[RepairContext]):
    """One run of repair with its journal.

    Raises:
        InvalidInput: the journal has no header.
    """

    verb = "repair"

    def __init__(self, context: RepairContext, journal: Journal) -> None:
        super().__init__(context, journal)
        self.header = repair_header(journal.entries)

    def progress(self) -> dict[str, Progress]:
        """Return the progress of every node, from the journal."""
        return progress_by_node(self.journal.entries, self.header.patients)

    def out(self) -> frozenset[str]:
        """Return the nodes that are out of service, also those that earlier runs left out."""
        *_, (_, now) = ("", frozenset[str]()), *out_of_service(self.journal.entries)
        return now | frozenset(self.header.already_out)

    def go(self) -> Outcome[End]:
        """Run all steps, or those before a further node that may not leave service.

        An interrupted run keeps its leases, so that no other run changes its nodes.

        Raises:
            Refused: another run holds a node; the window closed, or another run took over a node, and the
                others are finished (the run can be resumed).
            CrewLost: no worker is available any more (the run can be resumed).
        """
        with self.leases:
            self.lease(self._treated(), begun=any(each.begun for each in self.progress().values()))
            stopped = None
            while due := self._due():
                step = min(due.values(), key=STEPS.index)
                if nodes := self.held(node for node, its in due.items() if its == step):
                    self._take(step, nodes)
            self.refuse_lost(node for node, each in self.progress().items() if each.next_step)
            if left := self._waiting():
                stopped = self._too_many(left)
            return self.conclude(self._outcome(stopped))

    def _treated(self) -> list[str]:
        """Return the nodes that have steps, in order."""
        return [node for node, each in self.progress().items() if each.end != "left"]

    def _waiting(self) -> list[str]:
        """Return the nodes whose steps have not begun, in order."""
        return [node for node, each in self.progress().items() if each.next_step and not each.begun]

    def _due(self) -> dict[str, str]:
        """Return node → next step, of nodes that have begun and of those that may follow now, without those
        that another run took.

        Raises:
            Refused: the window closed before a node; nodes that have begun are finished first.
        """
        known = {node: each for node, each in self.progress().items() if node not in self.lost}
        due = {node: step for node, each in known.items() if each.begun and (step := each.next_step)}
        waiting = [node for node in self._waiting() if node in known]
        free = max(0, self.header.at_once - len(self.out()))
        window = self.context.rollout.window
        if waiting and free and window and not is_open(window, datetime.now(UTC)):
            if due:
                return due
            raise self.refuse_closed(window, fold(waiting))
        return due | {node: str(known[node].next_step) for node in waiting[:free]}

    def _take(self, step: str, nodes: list[str]) -> None:
        """Run a step on nodes, with its beginning and each node's result in the journal.

        An error of the whole step is the failure of each of its nodes.

        Raises:
            CrewLost: no worker is available any more.
        """
        result, seconds = self.attempt(step, nodes, step, steps.named(step))
        if isinstance(result, GpuprovError):
            result = Result(dict.fromkeys(nodes, str(result)))
        for node in nodes:
            if (reason := result.busy.get(node)) is not None:
                self.context.narrate(f"{step} not tried on {node}: {reason}")
                self.journal.write(f"{IDLE}{step}", "failed", [node], reason)
            elif (reason := result.failed.get(node)) is not None:
                self.context.narrate(f"{step} did not help {node}: {reason}")
                self.journal.write(step, "failed", [node], reason)
            else:
                data = {"seconds": seconds, **result.data.get(node, {})}
                self.journal.write(step, "done", [node], data)

    def _too_many(self, waiting: list[str]) -> str:
        """Return why nodes were not begun: as many as allowed are out and stay out."""
        out = sorted(self.out())
        return (
            f"{fold(waiting)} not begun: {fold(out)} {'are' if len(out) > 1 else 'is'} out of service, "
            f"at most {self.header.at_once} may be; return them, or give --at-once {len(out) + 1}"
        )

    def _outcome(self, stopped: str | None) -> Outcome[End]:
        """Return the result; a node that was not begun is `left`."""
        known = self.progress()
        ends: dict[str, End] = {node: each.end or "left" for node, each in known.items()}
        reasons = {node: each.reason for node, each in known.items() if each.end and each.reason}
        return Outcome(ends, reasons, stopped)
