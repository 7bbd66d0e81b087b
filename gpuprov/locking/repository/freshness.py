"""Check of an index's dates: not expired, not in the future, not older than the last one.

A signature proves the author of an index, not its date: an old index, with the vulnerable packages of its
time, still has a valid signature. apt checks Valid-Until and Date, and keeps the newer index if a mirror
offers an older one (apt-secure(8); `pkgAcqMetaBase::VerifyVendor` in apt's acquire-item.cc). Here the older
one is refused.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, date, datetime, time
from email.utils import format_datetime
from pathlib import Path

from gpuprov.errors import GpuprovError, InvalidInput, Refused
from gpuprov.files.runs import state_dir
from gpuprov.files.writing import make_folders, replace_file
from gpuprov.model.exclusive import exclusive


def check_dates(
    name: str,
    written: datetime | None,
    until: datetime | None = None,
    *,
    now: datetime | None = None,
    frozen: date | None = None,
) -> None:
    """Check the dates of an index, and record the newest one read under its name.

    Args:
        name: the URL that identifies the index: that of its suite.
        written: its stated date, in UTC; None if it states none.
        until: its stated date of expiry, in UTC.
        now: time for the check; by default the current time.
        frozen: snapshot date, in UTC, of a mirror that is deliberately not updated: the index is checked as
            of the end of that day, and may be older than one that was read for a later day.

    Raises:
        Refused: expired, in the future, or older than the newest that was read before; or without a date
            although that one had one.
        GpuprovError: the record cannot be read or written.
    """
    judged = now = now or datetime.now(UTC)
    if frozen:
        judged = min(now, datetime.combine(frozen, time.max, UTC))
    if until and judged > until:
        raise Refused(
            f"{name} expired at {_http_date(until)}",
            do="sync the mirror again, and check the clock here; " + _to_freeze(frozen, written or until),
        )
    if written and written > judged:
        raise Refused(
            f"{name} is dated {_http_date(written)}, which is "
            + (f"after {frozen}, where fleet.yml has it frozen" if judged < now else "in the future"),
            do="state the day of the snapshot as frozen: in fleet.yml"
            if judged < now
            else "check the clock here",
        )
    try:
        _check_against_last(name, written, judged, frozen)
    except OSError as error:
        raise GpuprovError(
            f"the date of {name} cannot be recorded: {error}",
            do="set XDG_STATE_HOME to a folder that can be written",
        ) from error


def _check_against_last(name: str, written: datetime | None, judged: datetime, frozen: date | None) -> None:
    """Check that an index is not older than the newest one read under its name; record its date if it is
    newer.

    A frozen index is not compared with one that was read for a later day. A lock of the records' folder
    excludes other processes.

    Raises:
        Refused: it is older, or has no date although the last one had.
        InvalidInput: the record is not one.
        OSError: the record cannot be read or written.
    """
    folder = state_dir() / "repositories"
    kept = folder / (hashlib.sha256(name.encode()).hexdigest()[:32] + ".json")
    make_folders(folder)
    with exclusive(folder):
        last = _read(kept)
        if last and not (frozen and last > judged) and (written is None or written < last):
            raise Refused(
                f"{name} is " + (f"dated {_http_date(written)}" if written else "without a date"),
                expected=f"{_http_date(last)} or later, the date of the index that was read before",
                do="sync the mirror again, because it is older than before or replays an old index; "
                + _to_freeze(frozen, written),
            )
        if written and (last is None or written > last):
            replace_file(kept, json.dumps({"url": name, "date": written.isoformat()}))


def _read(kept: Path) -> datetime | None:
    """Return the recorded date; None if there is no record.

    Raises:
        InvalidInput: the record is damaged.
    """
    if not kept.exists():
        return None
    try:
        return datetime.fromisoformat(json.loads(kept.read_text())["date"]).astimezone(UTC)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{kept} cannot be read: {error}", do="remove it") from error


def _to_freeze(frozen: date | None, day: datetime | None) -> str:
    """Return the hint for a mirror that is deliberately not updated."""
    if frozen:
        return "or correct frozen: in fleet.yml"
    example = f"{day:%Y-%m-%d}" if day else "DAY"
    return (
        "for a mirror that is frozen on purpose, state this in fleet.yml, "
        f"repositories: {{ID: {{url: URL, frozen: {example}}}}}"
    )


def _http_date(moment: datetime) -> str:
    """Return a time as HTTP headers have it: `Sun, 22 Nov 2026 10:00:00 GMT`."""
    return format_datetime(moment, usegmt=True)
