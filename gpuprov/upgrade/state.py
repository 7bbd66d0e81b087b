"""What a journal says of each node, and which step comes next: a pure state machine.

A node goes forward (`FORWARD`). A failure turns it: back to its last good set (`BACK`), or it is held as it
is. A step that was begun and not ended, because the controller died, is simply the next step again: every
step looks at the node first and does only what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

Course = Literal["forward", "back"]
End = Literal["new", "old", "held", "stuck"]
"""On the new lock; on the old one; left drained as it is; neither, and in need of a hand."""
Event = Literal["begun", "done", "failed"]

FORWARD = ("record", "snapshot", "drain", "apply", "reboot", "verify", "resume")
BACK = ("restore", "mend", "confirm", "resume")
RETURN = ("drain", *BACK)
"""The steps of `gpuprov rollback`, which finds the node in service."""
STEPS = (*FORWARD, *BACK[:-1])
"""In the order in which a batch takes them: who is well serves again before others are brought back."""


@dataclass(frozen=True)
class Entry:
    """One line of a journal. `node` None speaks of the whole run."""

    number: int
    at: str
    step: str
    event: Event
    node: str | None = None
    data: Any = None


@dataclass(frozen=True)
class NodeProgress:
    """How far one node has come.

    Attributes:
        begun: steps that were begun, in order, without repetitions.
        done: those that ended well.
        failed: step → why, of those that did not.
    """

    course: Course = "forward"
    hold: bool = False
    begun: tuple[str, ...] = ()
    done: frozenset[str] = frozenset()
    failed: tuple[tuple[str, str], ...] = ()

    @property
    def failed_steps(self) -> frozenset[str]:
        """The steps that did not end well."""
        return frozenset(step for step, _ in self.failed)

    @property
    def reason(self) -> str | None:
        """The first failure, as a person reads it."""
        return f"{self.failed[0][0]}: {self.failed[0][1]}" if self.failed else None

    @property
    def touched(self) -> bool:
        """Whether anything on the node may have changed."""
        return self.course == "back" or "apply" in self.begun

    @property
    def route(self) -> tuple[str, ...]:
        """All steps that this node has to take, as far as is known now."""
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
        """What is to be done now; None when there is nothing left."""
        if self.failed_steps.intersection(BACK):
            return None
        ended = self.done | self.failed_steps
        return next((step for step in self.route if step not in ended), None)

    @property
    def end(self) -> End | None:
        """Where the node came to stand; None while it is on its way."""
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
        """The same with one more entry."""
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
    """How far every node has come, by a run's journal."""
    found = {node: NodeProgress(course, hold) for node in nodes}
    for entry in entries:
        if entry.node in found and entry.step in STEPS:
            found[entry.node] = found[entry.node].after(entry)
    return found


def out_of_service(entries: Iterable[Entry]) -> Iterator[tuple[str, frozenset[str]]]:
    """Moment → the nodes that are out of service from then on: drained, and not put back yet."""
    out: frozenset[str] = frozenset()
    for entry in entries:
        before = out
        if entry.node and (entry.step, entry.event) == ("drain", "begun"):
            out |= {entry.node}
        if entry.node and (entry.step, entry.event) == ("resume", "done"):
            out -= {entry.node}
        if out != before:
            yield entry.at, out
