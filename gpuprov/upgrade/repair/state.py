"""State of each node of a repair from its journal, and its next step: a pure state machine.

A node is drained, then takes the rungs of its ladder. Before each rung its GPUs must be free of jobs; after
each the doctor is asked again, and a node that it calls mended is measured. A mended node returns to service,
and so does one that is in use before its first rung; another one stays out. A step that has begun and not
ended, because the controller died, is the next again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gpuprov.upgrade.repair.ladder import LADDERS, Patient, Rung
from gpuprov.upgrade.state import Entry

End = Literal["mended", "out", "busy", "left"]
"""Back in service; drained, with a bundle for the vendor; in use, and left as it was; not treated."""
RUNGS: tuple[Rung, ...] = tuple(dict.fromkeys(rung for rungs in LADDERS.values() for rung in rungs))
"""All rungs, from the gentlest."""
IDLE, LOOK, ACCEPT = "idle-", "look-", "accept-"
"""Steps before and after a rung, with its name."""


def steps_of(rung: Rung) -> tuple[str, ...]:
    """Return the steps of a rung, in order."""
    return (IDLE + rung, rung, LOOK + rung, ACCEPT + rung)


STEPS = ("resume", "bundle", "drain", *(step for rung in RUNGS for step in steps_of(rung)))
"""The order among nodes: those that are done leave first, so that others can follow."""


@dataclass(frozen=True)
class Progress:
    """Progress of one node.

    Attributes:
        begun: steps that have begun.
        done: step that succeeded → its data.
        failed: step that failed → the reason.
    """

    patient: Patient
    begun: frozenset[str] = frozenset()
    done: Mapping[str, Any] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def busy(self) -> str:
        """The reason for which the node was not free of jobs; empty if it was."""
        kept = [step for step in self.failed if step == "drain" or step.startswith(IDLE)]
        return f"{kept[0]}: {self.failed[kept[0]]}" if kept else ""

    @property
    def mended_by(self) -> Rung | None:
        """The rung after which the doctor found no reason for a repair and the node was accepted; None
        without one.
        """
        return next((rung for rung in self.patient.rungs if ACCEPT + rung in self.done), None)

    @property
    def tried(self) -> tuple[Rung, ...]:
        """The rungs that have begun, in order, without one before which the node was found in use again."""
        begun = (rung for rung in self.patient.rungs if rung in self.begun)
        return tuple(rung for rung in begun if IDLE + rung not in self.failed)

    @property
    def next_step(self) -> str | None:
        """The next step; None at the end."""
        return next((step for step in self._route() if not self._ended(step)), None)

    @property
    def end(self) -> End | None:
        """The node's end; None while steps are left."""
        if not self.patient.rungs and not self.patient.stays:
            return "left"
        if self.next_step is not None:
            return None
        if self.busy:
            return "busy" if "resume" in self.done else "out"
        return "mended" if "resume" in self.done else "out"

    @property
    def reason(self) -> str | None:
        """The reason for which the node is not mended; None if it is, or was not treated."""
        if self.end in ("mended", "left"):
            return None
        if "resume" in self.failed:
            return f"resume: {self.failed['resume']}"
        if self.busy or self.patient.stays:
            return self.busy or self.patient.stays
        said = [f"{step}: {reason}" for step, reason in self.failed.items() if step != "bundle"]
        return said[-1] if said else None

    def after(self, entry: Entry) -> Progress:
        """Return the progress after one more entry."""
        match entry.event:
            case "begun":
                return replace(self, begun=self.begun | {entry.step})
            case "done":
                return replace(self, done={**self.done, entry.step: entry.data})
            case "failed":
                return replace(self, failed={**self.failed, entry.step: str(entry.data)})

    def _ended(self, step: str) -> bool:
        """Return whether a step succeeded or failed."""
        return step in self.done or step in self.failed

    def _route(self) -> Iterator[str]:
        """Yield the steps of this node in order, as far as known now; none for a node that is neither treated
        nor drained.
        """
        if not self.patient.rungs and not self.patient.stays:
            return
        yield "drain"
        if "drain" in self.failed:
            yield "resume"
            return
        for rung in () if self.patient.stays else self.patient.rungs:
            yield IDLE + rung
            if IDLE + rung in self.failed:
                yield "bundle" if self.tried else "resume"
                return
            yield from (rung, LOOK + rung)
            if LOOK + rung in self.done:
                yield ACCEPT + rung
            if ACCEPT + rung in self.done:
                yield "resume"
                return
        yield "bundle"


def progress_by_node(entries: Iterable[Entry], patients: Mapping[str, Patient]) -> dict[str, Progress]:
    """Return the progress of every node from a run's journal; entries of other nodes are ignored."""
    found = {node: Progress(patient) for node, patient in patients.items()}
    for entry in entries:
        if entry.node in found and entry.step in STEPS:
            found[entry.node] = found[entry.node].after(entry)
    return found
