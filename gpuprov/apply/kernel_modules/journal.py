"""Journal of signatures: one JSON line for every module that was signed with the site's key.

    $XDG_STATE_HOME/gpuprov/signed-modules.jsonl

Lines are only appended. A signature that cannot be recorded is not used: its modules are not stored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuprov.errors import GpuprovError
from gpuprov.files.runs import state_dir
from gpuprov.files.writing import make_folders
from gpuprov.untrusted import json_line
from gpuprov.untrusted.stated import stated_json


@dataclass(frozen=True)
class Signed:
    """Entry for one signed module.

    Attributes:
        at: time of the signature, UTC, ISO 8601.
        run: id of the run; empty outside of a run.
        fleet: path of the fleet's file.
        certificate: SHA-256 of the certificate.
        build: the fields of the module's `Build`, including `builders`, which compiled it.
        file: name of the module's file.
        before: SHA-256 of the module without a signature.
        after: SHA-256 of the file that nodes get, signed, and compressed according to its suffix.
    """

    at: str
    run: str
    fleet: str
    certificate: str
    build: dict[str, Any]
    file: str
    before: str
    after: str


def path() -> Path:
    """Return the path of the journal, which need not exist; raises as `state_dir`."""
    return state_dir() / "signed-modules.jsonl"


def record(entries: Iterable[Signed]) -> None:
    """Append entries to the journal, and synchronise it to the disk.

    Raises:
        GpuprovError: it cannot be written.
    """
    lines = "".join(f"{json_line(asdict(entry))}\n" for entry in entries).encode()
    try:
        make_folders(path().parent)
        file = os.open(path(), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            _append(file, lines)
        finally:
            os.close(file)
    except OSError as error:
        raise GpuprovError(
            f"the journal of signatures {path()} cannot be written: {error.strerror}",
            expected="a line for every module that is signed; these are not kept",
            do="free space or restore your access to it, then run the command again",
        ) from None


def _append(file: int, lines: bytes) -> None:
    """Append lines to an open file and synchronise it, after a line break if its last line is incomplete."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":  # keep an incomplete line separate
        lines = b"\n" + lines
    while lines:
        lines = lines[os.write(file, lines) :]
    os.fsync(file)


def read() -> list[Signed]:
    """Return all entries, oldest first; an incomplete line is skipped. Empty without a journal.

    Raises:
        GpuprovError: the journal exists and cannot be read.
    """
    if not path().exists():
        return []
    try:
        text = path().read_text("utf-8", "replace")
    except OSError as error:
        raise GpuprovError(f"the journal of signatures {path()} cannot be read: {error.strerror}") from None
    return [entry for line in text.splitlines() if (entry := _entry(line))]


def _entry(line: str) -> Signed | None:
    """Return the entry of a line; None if it is not one."""
    try:
        return Signed(**stated_json(line))
    except (ValueError, TypeError):
        return None
