"""State of each node from the journal, and its next step: a pure state machine.

A node takes the steps of `FORWARD`. After a failure it returns to its last good set (`BACK`), or is held as
it is. A step that has begun and not ended, because the controller died, is the next step again: every step
checks the node first and does only what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

Course = Literal["forward", "back"]
End = Literal["new", "old", "held", "stuck"]
"""On the new lock; on the old one; left drained as it is; neither, to be repaired manually."""
Event = Literal["begun", "done", "failed"]

FORWARD = ("record", "snapshot", "drain", "apply", "reboot", "verify", "resume")
BACK = ("restore", "mend", "confirm", "resume")
RETURN = ("drain", *BACK)
"""The steps of `gpuprov rollback`, which finds the node in service."""
STEPS = (*FORWARD, *BACK[:-1])
"""Steps in the order within a batch: healthy nodes return to service before others are rolled back."""


@dataclass(frozen=True)
class Entry:
    """One line of a journal. `node` is None for the whole run."""

    number: int
    at: str
    step: str
    event: Event
    node: str | None = None
    data: Any = None


@dataclass(frozen=True)
class NodeProgress:
    """Progress of one node.

    Attributes:
        begun: steps that have begun, in order, without repetitions.
        done: steps that succeeded.
        failed: pairs of failed step and reason.
    """

    course: Course = "forward"
    hold: bool = False
    begun: tuple[str, ...] = ()
    done: frozenset[str] = frozenset()
    failed: tuple[tuple[str, str], ...] = ()

    @property
    def failed_steps(self) -> frozenset[str]:
        """The steps that failed."""
        return frozenset(step for step, _ in self.failed)

    @property
    def reason(self) -> str | None:
        """The first failure as `STEP: REASON`; None without a failure."""
        return f"{self.failed[0][0]}: {self.failed[0][1]}" if self.failed else None

    @property
    def touched(self) -> bool:
        """Whether anything on the node may have changed."""
        return self.course == "back" or "apply" in self.begun

    @property
    def route(self) -> tuple[str, ...]:
        """All steps of this node, as far as known now."""
        if self.course == "back":
            return ("drain", "resume") if "drain" in self.failed_steps else RETURN
        turned = next((step for step, _ in self.failed if step != "resume"), None)
        if turned is None:
            return FORWARD
        taken = FORWARD[: FORWARD.index(turned) + 1] if turned in FORWARD else FORWARD[:-1]
        if not self.touched:
            return (*taken, "resume") if "drain" in self.begun else taken
        return taken if self.hold else (*taken, *BACK)

    @property
    def next_step(self) -> str | None:
        """The next step; None at the end."""
        if self.failed_steps.intersection(BACK):
            return None
        ended = self.done | self.failed_steps
        return next((step for step in self.route if step not in ended), None)

    @property
    def end(self) -> End | None:
        """The node's end; None while steps are left."""
        if self.next_step is not None:
            return None
        if self.course == "back" and "restore" not in self.begun:
            return "new"
        if not self.touched:
            return "old"
        if "confirm" in self.done:
            return "old"
        if "verify" in self.done:
            return "new"
        return "held" if self.hold and not self.failed_steps.intersection(BACK) else "stuck"

    def after(self, entry: Entry) -> NodeProgress:
        """Return the progress after one more entry."""
        match entry.event:
            case "begun":
                return replace(self, begun=tuple(dict.fromkeys((*self.begun, entry.step))))
            case "done":
                return replace(self, done=self.done | {entry.step})
            case "failed":
                return replace(self, failed=(*self.failed, (entry.step, str(entry.data))))


def progress_by_node(
    entries: Iterable[Entry], nodes: Iterable[str], *, course: Course, hold: bool
) -> dict[str, NodeProgress]:
    """Return the progress of every node from a run's journal; entries of other nodes are ignored."""
    found = {node: NodeProgress(course, hold) for node in nodes}
    for entry in entries:
        if entry.node in found and entry.step in STEPS:
            found[entry.node] = found[entry.node].after(entry)
    return found


def out_of_service(entries: Iterable[Entry]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield a time and the nodes that are out of service from then on: drained and not resumed yet."""
    out: frozenset[str] = frozenset()
    for entry in entries:
        before = out
        if entry.node and (entry.step, entry.event) == ("drain", "begun"):
            out |= {entry.node}
        if entry.node and (entry.step, entry.event) == ("resume", "done"):
            out -= {entry.node}
        if out != before:
            yield entry.at, out
