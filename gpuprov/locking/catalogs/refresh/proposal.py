"""Proposed changes to the data files, each with its reason, and their application to a copy."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path
from typing import Any

from gpuprov.catalog.loading import LAYOUT
from gpuprov.catalog.version import Version, version
from gpuprov.catalog.writing import render
from gpuprov.errors import GpuprovError, InvalidInput
from gpuprov.files.writing import replace_file
from gpuprov.locking.catalogs.refresh.seen import plain

Document = dict[str, Any]

MACHINE = ("pypi", "debian-apt", "debian-index", "index-nvidia", "index-archives")
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
    try:
        return {
            path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(data.glob("*.json"))
        }
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{data}: {error}", expected="the data files of a catalog") from error


@dataclass
class Proposal:
    """Collection of changes to documents, which stay unchanged.

    Attributes:
        remarks: findings that need a decision and are not changes.
    """

    documents: Mapping[str, Document]
    changes: list[Change] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def record(self, file: str, section: str, name: str) -> Document | None:
        """Return the record of a name, including the changes proposed so far."""
        new = (each for each in self.changes if (each.file, each.section, each.name) == (file, section, name))
        found = _found(self.documents, file, section, name)
        for change in new:
            found = dict(change.value) if not change.field else {**(found or {}), change.field: change.value}
        return found

    def add(self, file: str, section: str, record: Document, why: str, source: str) -> None:
        """Propose a new record."""
        name = str(record[key_of(file, section)])
        self.changes.append(Change(file, section, name, "", record, why, source))

    def set(
        self,
        record_of: tuple[str, str, str],
        to: tuple[str, Any],
        why: str,
        source: str,
        stated_by: Collection[str] | None = None,
    ) -> None:
        """Propose a value for a field of a record.

        A replacement counts as overwriting a value stated by hand, unless this package reads all sources of
        the old value, or the new value is a list that contains the old one.

        Args:
            record_of: file, section and name of the record.
            to: the field and its value.
            stated_by: sources of the value that is replaced; those of the whole record by default. Empty for
                a value that is by definition the newest or the lowest that was read.
        """
        record = self.record(*record_of) or {}
        old, value = record.get(to[0]), to[1]
        grown = isinstance(old, list) and isinstance(value, list) and all(each in value for each in old)
        cited = record.get("source", ()) if stated_by is None else stated_by
        by_hand = (
            () if old is None or grown else tuple(each for each in cited if not each.startswith(MACHINE))
        )
        if old != value:
            self.changes.append(Change(*record_of, *to, why, source, by_hand))


def _found(documents: Mapping[str, Document], file: str, section: str, name: str) -> Document | None:
    key = key_of(file, section)
    return next((row for row in documents[file][section] if str(row[key]) == name), None)


def key_of(file: str, section: str) -> str:
    """Return the field that names the records of a section."""
    return "id" if file == "devices" else LAYOUT[file][section][1]


def chosen(changes: Collection[Change], overwrite: Collection[str]) -> list[Change]:
    """Return the changes to write: all but those that overwrite a value stated by hand.

    Args:
        overwrite: keys of changes that may overwrite such a value.

    Raises:
        InvalidInput: a key that no such change has.
    """
    keys = {change.key for change in changes if change.by_hand}
    if unknown := sorted(set(overwrite) - keys):
        raise InvalidInput(
            f"--overwrite {unknown[0]}", expected=f"one of {', '.join(sorted(keys)) or 'none'}"
        )
    return [change for change in changes if not change.by_hand or change.key in overwrite]


def applied(
    documents: Mapping[str, Document],
    changes: Collection[Change],
    sources: Mapping[str, Mapping[str, str]],
    day: str,
) -> dict[str, Document]:
    """Return copies of the documents with the changes, their sources and the day."""
    new = {name: copy.deepcopy(document) for name, document in documents.items()}
    for change in changes:
        document = new[change.file]
        rows: list[Document] = document[change.section]
        key = key_of(change.file, change.section)
        if change.field:
            record = next(row for row in rows if str(row[key]) == change.name)
            record[change.field] = change.value
            record["source"] = list(dict.fromkeys([*record["source"], change.source]))
        else:
            rows.insert(_place(rows, change, key), dict(change.value))
        cited = document if change.file != "devices" else new["gpus"]
        cited["sources"] = dict(
            sorted({**cited["sources"], change.source: dict(sources[change.source])}.items())
        )
        document["as_of"] = day
    return new


def _place(rows: list[Document], change: Change, key: str) -> int:
    """Return the index for a new record: before the first higher one, in files that are sorted."""
    mine = _rank(change.value, key)
    ranks = [_rank(row, key) for row in rows]
    if ranks != sorted(ranks):
        return 0 if ranks == sorted(ranks, reverse=True) else len(rows)
    return next((index for index, rank in enumerate(ranks) if rank > mine), len(rows))


def _rank(row: Document, key: str) -> tuple[Any, ...]:
    if "devices" in row:
        return (min(row["devices"]),)
    value = row[key]
    try:
        return (version(str(value)).parts,) if not isinstance(value, Version) else (value.parts,)
    except ValueError:
        return (str(value),)


def diff(old: Mapping[str, Document], new: Mapping[str, Document]) -> Iterator[str]:
    """Yield the changed lines of the files, in the format of `diff -u`."""
    for name in new:
        if name != LAST_READ and old.get(name) != new[name]:
            before, after = (render(each).splitlines() for each in (old[name], new[name]))
            yield from unified_diff(before, after, f"a/{name}.json", f"b/{name}.json", lineterm="", n=2)


def write(data: Path, old: Mapping[str, Document], new: Mapping[str, Document]) -> list[Path]:
    """Write the changed files and return their paths.

    Raises:
        GpuprovError: the folder cannot be written.
    """
    written = []
    for name, document in new.items():
        if old.get(name) != document:
            path = data / f"{name}.json"
            try:
                replace_file(path, render(document))
            except OSError as error:
                raise GpuprovError(f"{path} cannot be written: {error.strerror}") from error
            written.append(path)
    return written


def describe(change: Change, documents: Mapping[str, Document]) -> Iterator[str]:
    """Yield the description of one change.

    `+` is new, `~` is changed, `!` would overwrite a value stated by hand.
    """
    sign = "!" if change.by_hand else "~" if change.field else "+"
    yield f"{sign} {change.key}: {change.why} [{change.source}]"
    if change.field and not isinstance(change.value, list | dict):
        old = _found(documents, change.file, change.section, change.name) or {}
        yield f"    {plain(old.get(change.field, 'nothing'))} → {plain(change.value)}"
    if change.by_hand:
        by = ", ".join(change.by_hand)
        yield f"    stated by hand ({by}): not written without --overwrite {change.key}"
