"""Proposed changes of the catalog: which are written, as a diff, and into the data files."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Collection, Iterator, Mapping
from difflib import unified_diff
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpuprov.catalog.loading import read_data
from gpuprov.catalog.version import Version, version
from gpuprov.errors import GpuprovError, InvalidInput
from gpuprov.files.writing import replace_file
from gpuprov.locking.catalogs.refresh.proposal import LAST_READ, Change, Document, Proposal, key_of
from gpuprov.locking.catalogs.refresh.seen import plain
from maintenance.data_files import render


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
    """Return copies of the documents with the changes, their sources and the day.

    Args:
        documents: name of a data file → its document.
        changes: changes of fields, or new records.
        sources: id of a source → its title and URL, which are added to the document.
        day: ISO 8601, for `as_of` of each changed document.
    """
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
    """Return the index for a new record: before the first higher one, in files that are sorted.

    In a file in descending order it is 0, in one without order the end.
    """
    mine = _rank(change.value, key)
    ranks = [_rank(row, key) for row in rows]
    if ranks != sorted(ranks):
        return 0 if ranks == sorted(ranks, reverse=True) else len(rows)
    return next((index for index, rank in enumerate(ranks) if rank > mine), len(rows))


def _rank(row: Document, key: str) -> tuple[Any, ...]:
    """Return the sort key of a record: its lowest device id, its version, or the text of its key."""
    if "devices" in row:
        return (min(row["devices"]),)
    value = row[key]
    try:
        return (version(str(value)).parts,) if not isinstance(value, Version) else (value.parts,)
    except ValueError:
        return (str(value),)


def diff(old: Mapping[str, Document], new: Mapping[str, Document]) -> Iterator[str]:
    """Yield the changed lines of the files, in the format of `diff -u` with two lines of context.

    Unchanged files and `LAST_READ` are left out.
    """
    for name in new:
        if name != LAST_READ and old.get(name) != new[name]:
            before, after = (render(each).splitlines() for each in (old[name], new[name]))
            yield from unified_diff(before, after, f"a/{name}.json", f"b/{name}.json", lineterm="", n=2)


def write(data: Path, old: Mapping[str, Document], new: Mapping[str, Document]) -> list[Path]:
    """Write the changed files and return their paths; unchanged ones are not written.

    Args:
        data: the folder of the data files.

    Raises:
        GpuprovError: the folder cannot be written, or could not be loaded afterwards and is not changed.
    """
    changed = {
        data / f"{name}.json": render(document) for name, document in new.items() if old.get(name) != document
    }
    _require_loadable(data, changed)
    for path, content in changed.items():
        try:
            replace_file(path, content)
        except OSError as error:
            raise GpuprovError(f"{path} cannot be written: {error.strerror}") from error
    return list(changed)


def _require_loadable(data: Path, changed: Mapping[Path, str]) -> None:
    """Load a copy of a folder of data files with the changed ones.

    Raises:
        GpuprovError: the catalog would refuse it, and each later start of gpuprov with it.
    """
    with TemporaryDirectory(prefix="gpuprov-catalog-") as copied:
        shutil.copytree(data, copied, dirs_exist_ok=True)
        for path, content in changed.items():
            (Path(copied) / path.name).write_text(content, "utf-8")
        try:
            read_data(Path(copied))
        except InvalidInput as error:
            raise GpuprovError(
                f"nothing was written, because the catalog would not load: {error}",
                do="leave out the source of that change, or report it",
            ) from None


def describe(change: Change, documents: Mapping[str, Document]) -> Iterator[str]:
    """Yield the description of one change, up to three lines: reason, old and new value, and a remedy.

    `+` is new, `~` is changed, `!` would overwrite a value stated by hand.
    """
    sign = "!" if change.by_hand else "~" if change.field else "+"
    yield f"{sign} {change.key}: {change.why} [{change.source}]"
    if change.field and not isinstance(change.value, list | dict):
        old = Proposal(documents).record(change.file, change.section, change.name) or {}
        yield f"    {plain(old.get(change.field, 'nothing'))} → {plain(change.value)}"
    if change.by_hand:
        by = ", ".join(change.by_hand)
        yield f"    stated by hand ({by}): not written without --overwrite {change.key}"
