"""The journal of a run: one JSON document per line, synced to the disk before the step begins."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpuprov.errors import InvalidInput, Refused
from gpuprov.finding import shortened
from gpuprov.untrusted.stated import stated_json
from gpuprov.upgrade.state import Entry, Event

NAME = "journal.jsonl"


class Journal(AbstractContextManager["Journal"]):
    """A run's journal, open for appending by one process at a time; a missing file is created.

    An incomplete last line, left by a crash, is removed: its step had not begun.

    Raises:
        InvalidInput: the file is not a journal, or was changed.
        Refused: another process has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise Refused(
                f"another gpuprov process works on {path.parent.name}", do="wait for it to end"
            ) from None
        self._file.seek(0)
        text = self._file.read()
        self.entries = parse(text, str(path))
        self._file.truncate(text.rfind(b"\n") + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, step: str, event: Event, nodes: Iterable[str | None] = (None,), data: Any = None) -> None:
        """Append one entry for each node, by default one for the whole run, and sync them to the disk.

        Texts, such as a node's reason for a failure, are shortened: the journal is read and kept as a whole.
        """
        data = _shortened(data)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        fresh = [
            Entry(len(self.entries) + count, at, step, event, node, data)
            for count, node in enumerate(nodes, start=1)
        ]
        self._file.write("".join(json.dumps(asdict(entry)) + "\n" for entry in fresh).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.entries += fresh


def _shortened(data: Any) -> Any:
    """Return data of an entry with each text shortened, also in mappings and sequences."""
    if isinstance(data, str):
        return shortened(data)
    if isinstance(data, Mapping):
        return {name: _shortened(each) for name, each in data.items()}
    return [_shortened(each) for each in data] if isinstance(data, (list, tuple)) else data


def read(folder: Path) -> list[Entry]:
    """Return the entries of a run, which may still be in progress.

    Raises:
        InvalidInput: the run has no journal, or a damaged one.
    """
    path = folder / NAME
    if not path.exists():
        raise InvalidInput(f"{folder.name} has no journal", do="`gpuprov history` lists the runs")
    return parse(path.read_bytes(), str(path))


def parse(text: bytes, name: str) -> list[Entry]:
    """Return the entries in a journal's bytes, without an incomplete last line.

    Raises:
        InvalidInput: a complete line is not an entry, or entries between others are missing.
    """
    entries: list[Entry] = []
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        try:
            entry = Entry(**stated_json(line))
        except (ValueError, TypeError):
            raise InvalidInput(f"{name}:{number}: not an entry of a journal") from None
        if entry.number != number:
            raise InvalidInput(f"{name}:{number}: entry {entry.number}", expected=f"entry {number}")
        entries.append(entry)
    return entries
