"""The header of a run, fixed at its start: the first entry of its journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpuprov.errors import InvalidInput
from gpuprov.upgrade.batches import Batch
from gpuprov.upgrade.journal import Journal
from gpuprov.upgrade.state import Course, Entry

RUN = "run"
"""The step of the whole run: begun with its header, done or failed with its result."""


@dataclass(frozen=True)
class Header:
    """Fixed data of a run.

    Attributes:
        course: direction: to the new lock, or back.
        hold: whether a node that fails after a change is left as it is instead of being rolled back.
        source: id of the run whose records are restored.
        who: user and machine that started the run.
        accepted: checks of drift that the gate accepted.
        because: the reason for accepting them.
    """

    course: Course
    hold: bool
    batches: tuple[Batch, ...]
    source: str
    who: str
    accepted: tuple[str, ...] = ()
    because: str = ""

    @property
    def nodes(self) -> list[str]:
        """All nodes, in the order in which they move."""
        return [node for batch in self.batches for node in batch.nodes]

    def write(self, journal: Journal) -> None:
        """Write the first entry of a journal."""
        journal.write(RUN, "begun", data=asdict(self))


def header(entries: Sequence[Entry]) -> Header:
    """Return the header of a journal; raises as `header_data`."""
    data = header_data(entries)
    batches = tuple(Batch(each["name"], tuple(each["nodes"]), each["may_fail"]) for each in data["batches"])
    return Header(**{**data, "batches": batches, "accepted": tuple(data["accepted"])})


def header_data(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the values of a journal's header, of an upgrade or a repair.

    Raises:
        InvalidInput: the journal has no header: the run had not begun.
    """
    if not entries or entries[0].step != RUN:
        raise InvalidInput("the run's journal is empty: nothing was changed", do="start a new run")
    return dict(entries[0].data)


def ended(entries: Sequence[Entry]) -> bool:
    """Return whether a run has ended, successfully or not."""
    return bool(entries) and entries[-1].step == RUN and entries[-1].event != "begun"
