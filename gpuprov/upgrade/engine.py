"""Engine that runs the steps of nodes batch by batch, with each step in the journal before and after it.

Started again with the same journal, it continues where the journal ends.
"""

from __future__ import annotations

from datetime import UTC, datetime

from gpuprov.errors import GpuprovError, Refused
from gpuprov.model.nodeset import fold
from gpuprov.upgrade import steps
from gpuprov.upgrade.batches import Batch
from gpuprov.upgrade.context import UpgradeContext
from gpuprov.upgrade.fetching import fetch
from gpuprov.upgrade.header import RUN, header
from gpuprov.upgrade.journal import Journal
from gpuprov.upgrade.running import JournalledRun, Outcome
from gpuprov.upgrade.state import STEPS, End, NodeProgress, progress_by_node
from gpuprov.upgrade.window import is_open

FETCH, HELD = "fetch", "held"


class Engine(JournalledRun[UpgradeContext]):
    """One run with its journal.

    Raises:
        InvalidInput: the journal has no header.
    """

    verb = "upgrade"

    def __init__(self, context: UpgradeContext, journal: Journal) -> None:
        super().__init__(context, journal)
        self.header = header(journal.entries)

    def progress(self) -> dict[str, NodeProgress]:
        """Return the progress of every node, from the journal."""
        about = self.header
        return progress_by_node(self.journal.entries, about.nodes, course=about.course, hold=about.hold)

    def go(self) -> Outcome[End]:
        """Run every batch until one is bad; release the leases at the end.

        An interrupted run keeps its leases, so that no other run changes its nodes.

        Raises:
            Refused: another run holds a node, or a package cannot be fetched (no node has moved); the window
                closed, or another run took over a node, whose batch is finished without it (the run can be
                resumed).
            CrewLost: no worker is available any more (the run can be resumed).
        """
        with self.leases:
            return self._go()

    def _go(self) -> Outcome[End]:
        """Lease the nodes, fetch, and run the batches until one is bad; write the result into the journal,
        and return it.

        Raises:
            GpuprovError: a node cannot be leased, the packages cannot be fetched, or a batch is outside its
                window.
        """
        self.lease(self.header.nodes, begun=any(each.begun for each in self.progress().values()))
        self._fetch()
        stopped = None
        for batch in self.header.batches:
            self._refuse_outside_window(batch)
            self._move(batch)
            self._say_held(batch)
            if stopped := self._too_bad(batch):
                break
        return self.conclude(self._outcome(stopped))

    def _refuse_outside_window(self, batch: Batch) -> None:
        """Stop before a batch if the window has closed; a batch that has begun is finished.

        Raises:
            Refused: the window has closed; the leases are released.
        """
        window = self.context.rollout.window
        begun = any(self.progress()[node].begun for node in batch.nodes)
        if window and not begun and not is_open(window, datetime.now(UTC)):
            raise self.refuse_closed(window, batch.name)

    def _fetch(self) -> None:
        """Fetch on every node what upgrade and rollback need, before any of them moves.

        A rollback, or a resumed run that has fetched, does nothing.

        Raises:
            Refused: a node cannot fetch; the leases are released, and the run has ended.
        """
        fetched = any(entry.step == FETCH and entry.event == "done" for entry in self.journal.entries)
        if self.header.course == "back" or fetched:
            return
        self.context.narrate(f"fetching packages on {fold(self.header.nodes)}")
        self.journal.write(FETCH, "begun")
        try:
            fetch(self.context, self.header.nodes, self.header.batches[0].nodes)
        except Refused as refused:
            self.leases.release()
            self.journal.write(FETCH, "failed", data=str(refused))
            self.journal.write(RUN, "failed", data={"ends": {}, "reasons": {}, "stopped": str(refused)})
            raise
        self.journal.write(FETCH, "done")

    def _move(self, batch: Batch) -> None:
        """Run the earliest step that is due, for all its nodes together, until no step is left.

        Raises:
            Refused: steps are left of nodes that another run took; those of the other nodes are done.
            CrewLost: no worker is available any more.
        """
        while True:
            known = self.progress()
            unfinished = {node: step for node in batch.nodes if (step := known[node].next_step)}
            due = {node: step for node, step in unfinished.items() if node not in self.lost}
            if not due:
                return self.refuse_lost(unfinished)
            step = min(due.values(), key=STEPS.index)
            if nodes := self.held(node for node, its in due.items() if its == step):
                self._take(step, nodes, batch, steps.BY_NAME[step])

    def _take(self, step: str, nodes: list[str], batch: Batch, act: steps.Step) -> None:
        """Run a step on nodes, with its beginning and each node's result in the journal; failures are
        narrated.

        An error of the whole step is the failure of each of its nodes.

        Raises:
            CrewLost: no worker is available any more.
        """
        failed, seconds = self.attempt(step, nodes, f"{batch.name}: {step}", act)
        if isinstance(failed, GpuprovError):
            failed = dict.fromkeys(nodes, str(failed))
        for node, reason in failed.items():
            self.context.narrate(f"{batch.name}: {step} failed on {node}: {reason}")
            self.journal.write(step, "failed", [node], reason)
        self.journal.write(step, "done", [node for node in nodes if node not in failed], {"seconds": seconds})

    def _say_held(self, batch: Batch) -> None:
        """Run the hook `held`, if there is one, once for each node of a batch that failed and stays out of
        service.

        A hook that fails changes no end: it is narrated, and written into the journal.
        """
        said = {each.node for each in self.journal.entries if each.step == HELD and each.event != "begun"}
        known = self.progress()
        reasons = {
            node: known[node].reason or ""
            for node in batch.nodes
            if known[node].end in ("held", "stuck") and node not in said
        }
        if self.context.rollout.hooks.held is not None and (nodes := self.held(reasons)):
            ours = {node: reasons[node] for node in nodes}
            self._take(HELD, nodes, batch, lambda context, *_: steps.held(context, ours))

    def _too_bad(self, batch: Batch) -> str | None:
        """Return why the run ends after a batch; None if not more nodes failed than the batch allows."""
        known = self.progress()
        bad = [node for node in batch.nodes if known[node].failed]
        if len(bad) <= batch.may_fail:
            return None
        return f"{batch.name} failed: {fold(bad)}; allowed failures: {batch.may_fail}"

    def _outcome(self, stopped: str | None) -> Outcome[End]:
        """Return the result; a node with steps left is where it was: `old`, in a rollback `new`."""
        known = self.progress()
        ends: dict[str, End] = {}
        for node, progress in known.items():
            ends[node] = progress.end or ("old" if self.header.course == "forward" else "new")
        return Outcome(ends, {node: each.reason for node, each in known.items() if each.reason}, stopped)
