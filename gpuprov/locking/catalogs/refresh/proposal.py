"""Proposed changes to the data files, each with its reason."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprov.catalog.loading import LAYOUT
from gpuprov.untrusted.stated import read_stated_json

Document = dict[str, Any]

MACHINE = ("pypi", "debian-apt", "debian-index", "index-nvidia", "index-archives", "csaf-nvidia")
"""Prefixes of the keys of sources that this package reads; all other sources were stated by hand."""
LAST_READ = "readings"
"""File with the contents of the indexes at the last reading; no rule reads it."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change to one record.

    Attributes:
        file, section, name: place of the record.
        field: name of the field; empty: the whole record is new.
        value: new value of the field, or the new record.
        why: reason, for the reviewer.
        source: key of the source of the value.
        by_hand: sources of the value that would be replaced, if it was stated by hand.
    """

    file: str
    section: str
    name: str
    field: str
    value: Any
    why: str
    source: str
    by_hand: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Argument of `--overwrite` for this change: `drivers.branches.580.latest_known`."""
        return ".".join(filter(None, (self.file, self.section, self.name, self.field)))


def read_documents(data: Path) -> dict[str, Document]:
    """Return the data files of a catalog as plain data.

    Raises:
        InvalidInput: one cannot be read.
    """
    expected = "the data files of a catalog"
    return {path.stem: read_stated_json(path, expected=expected) for path in sorted(data.glob("*.json"))}


@dataclass
class Proposal:
    """Collection of changes to documents, which stay unchanged.

    Attributes:
        remarks: findings that need a decision and are not changes.
    """

    documents: Mapping[str, Document]
    changes: list[Change] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    _records: dict[tuple[str, str], dict[str, Document]] = field(default_factory=dict)

    def record(self, file: str, section: str, name: str) -> Document | None:
        """Return the record of a name, including the changes proposed so far; None if it does not exist."""
        if (file, section) not in self._records:
            key = key_of(file, section)
            rows = reversed(self.documents[file][section])  # of several with a name the first one counts
            self._records[file, section] = {str(row[key]): row for row in rows}
        return self._records[file, section].get(name)

    def _change(self, change: Change) -> None:
        """Add a change, and apply it to what `record` returns."""
        found = self.record(change.file, change.section, change.name) or {}
        of_field = {**found, change.field: change.value}
        whole = of_field if change.field else dict(change.value)
        self._records[change.file, change.section][change.name] = whole
        self.changes.append(change)

    def add(self, file: str, section: str, record: Document, why: str, source: str) -> None:
        """Propose a new record, by adding a change; `why` and `source` are its reason."""
        name = str(record[key_of(file, section)])
        self._change(Change(file, section, name, "", record, why, source))

    def set(
        self,
        record_of: tuple[str, str, str],
        to: tuple[str, Any],
        why: str,
        source: str,
        stated_by: Collection[str] | None = None,
    ) -> None:
        """Propose a value for a field of a record; nothing if the field already has it.

        A replacement counts as overwriting a value stated by hand, unless this package reads all sources of
        the old value, or the new value is a list or a mapping that contains the old one.

        Args:
            record_of: file, section and name of the record.
            to: the field and its value.
            stated_by: sources of the value that is replaced; those of the whole record by default. Empty for
                a value that is by definition the newest or the lowest that was read.
        """
        record = self.record(*record_of) or {}
        old, value = record.get(to[0]), to[1]
        cited = record.get("source", ()) if stated_by is None else stated_by
        by_hand = (
            ()
            if old is None or _contains(value, old)
            else tuple(each for each in cited if not each.startswith(MACHINE))
        )
        if old != value:
            self._change(Change(*record_of, *to, why, source, by_hand))


def _contains(value: Any, old: Any) -> bool:
    """Return whether a list has all items of an old list, or a mapping all entries of an old one."""
    if isinstance(old, dict) and isinstance(value, dict):
        return old.items() <= value.items()
    if not isinstance(old, list) or not isinstance(value, list):
        return False
    items, old_items = ({json.dumps(each, sort_keys=True) for each in some} for some in (value, old))
    return old_items <= items


def key_of(file: str, section: str) -> str:
    """Return the field that names the records of a section."""
    return "id" if file == "devices" else LAYOUT[file][section][1]
