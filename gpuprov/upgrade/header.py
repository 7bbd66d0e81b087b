"""What a run is, decided once at its start: the first entry of its journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpuprov.errors import InvalidInput
from gpuprov.upgrade.batches import Batch
from gpuprov.upgrade.journal import Journal
from gpuprov.upgrade.state import Course, Entry

RUN = "run"
"""The step that speaks of the run as a whole: begun with its header, done with how it ended."""


@dataclass(frozen=True)
class Header:
    """A run's course and order, who started it, and which drift its gate accepted."""

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
        """The first entry of a journal."""
        journal.write(RUN, "begun", data=asdict(self))


def header(entries: Sequence[Entry]) -> Header:
    """The header of a journal.

    Raises:
        InvalidInput: the journal is empty: the run had not begun.
    """
    if not entries or entries[0].step != RUN:
        raise InvalidInput("the run's journal has no beginning: nothing was done", do="start a new one")
    data: dict[str, Any] = dict(entries[0].data)
    batches = tuple(Batch(each["name"], tuple(each["nodes"]), each["may_fail"]) for each in data["batches"])
    return Header(**{**data, "batches": batches, "accepted": tuple(data["accepted"])})


def ended(entries: Sequence[Entry]) -> bool:
    """Whether a run came to its end, good or bad."""
    return bool(entries) and entries[-1].step == RUN and entries[-1].event != "begun"
