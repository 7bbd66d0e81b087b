"""SQLite store of runs, in one file under the state folder that only its owner may read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

from gpuprov.drift.judge import Difference, NodeDrift, Status
from gpuprov.drift.security import SecurityNote
from gpuprov.errors import InvalidInput
from gpuprov.files.runs import state_dir
from gpuprov.files.writing import make_folders
from gpuprov.history.changes import LONGEST, kept_value
from gpuprov.history.ledger import Event
from gpuprov.history.record import Group, Run
from gpuprov.untrusted.parsing import without_surrogates

VERSION = 4
"""Version of the tables, which SQLite keeps as `user_version`."""
TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, verb TEXT NOT NULL, at TEXT NOT NULL,
    fleet TEXT NOT NULL, groups TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS nodes (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, name TEXT NOT NULL, status TEXT NOT NULL,
    reason TEXT, drift TEXT NOT NULL, PRIMARY KEY (run, name)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS nodes_by_name ON nodes (name, run);
CREATE TABLE IF NOT EXISTS notes (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, note TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS notes_by_run ON notes (run);
CREATE TABLE IF NOT EXISTS verified (
    fleet TEXT NOT NULL, node TEXT NOT NULL, stated TEXT NOT NULL, PRIMARY KEY (fleet, node)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, fleet TEXT NOT NULL, node TEXT NOT NULL,
    machine TEXT NOT NULL, unit TEXT NOT NULL, kind TEXT NOT NULL, what TEXT NOT NULL, run TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_by_machine ON events (machine, number);
"""
"""Statements that create the tables, with `;` between them; lists and mappings are stored as JSON."""
LOOKS = ("status", "doctor")
"""Verbs whose runs only show nodes: of each node the newest result is kept, and lists leave them out."""
LATEST = "latest"
"""Name of the last recorded run, for `History.run`."""


@dataclass(frozen=True)
class Line:
    """One run in a list of runs, with the number of nodes in each status (empty from `History.of_node`)."""

    id: str
    verb: str
    at: str
    fleet: str
    counts: dict[Status, int]


class History(AbstractContextManager["History"]):
    """The runs of this controller, in a database that the context manager closes.

    Args:
        path: the file, created for its owner only; by default `history.sqlite` under the state folder.

    Raises:
        InvalidInput: the file cannot be created, is not a history, or a newer gpuprov wrote it.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Open the database, or create it for its owner only; InvalidInput if it cannot be kept or is no
        history.
        """
        self.path = path or state_dir() / "history.sqlite"
        try:
            make_folders(self.path.parent)
            self.path.touch(mode=0o600)
        except OSError as error:
            raise InvalidInput(
                f"no history can be kept in {self.path.parent}: {error.strerror}",
                do="set XDG_STATE_HOME to a folder that can be written",
            ) from None
        self._database = sqlite3.connect(self.path, timeout=30)
        try:
            self._prepare()
        except BaseException as error:
            self._database.close()
            if not isinstance(error, sqlite3.DatabaseError):
                raise
            raise InvalidInput(
                f"{self.path}: {error}", expected="a history of gpuprov", do="move it away; a new one is made"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def record(self, run: Run) -> None:
        """Store a run in one transaction; an earlier record with the same id (from before a reboot) is
        replaced.

        A run of a verb of `LOOKS` also replaces the earlier results of that verb about its nodes.
        """
        groups = {name: [group.nodes, group.checks] for name, group in run.groups.items()}
        with self._database as database:
            database.execute("DELETE FROM runs WHERE id = ?", (run.id,))
            if run.verb in LOOKS:
                self._forget_looks(run)
            number = database.execute(
                "INSERT INTO runs (id, verb, at, fleet, groups) VALUES (?, ?, ?, ?, ?)",
                (run.id, run.verb, run.at, run.fleet, json.dumps(groups)),
            ).lastrowid
            rows = (
                (
                    number,
                    node.name,
                    node.status,
                    without_surrogates(node.reason and node.reason[:LONGEST]),
                    _written(node),
                )
                for node in run.nodes
            )
            database.executemany("INSERT INTO nodes VALUES (?, ?, ?, ?, ?)", rows)
            notes = ((number, json.dumps(asdict(note))) for note in run.notes)
            database.executemany("INSERT INTO notes VALUES (?, ?)", notes)

    def _forget_looks(self, run: Run) -> None:
        """Remove earlier results of a verb of `LOOKS` about the nodes of a run, and runs without nodes."""
        self._database.executemany(
            "DELETE FROM nodes WHERE name = ? AND run IN"
            " (SELECT number FROM runs WHERE verb = ? AND fleet = ?)",
            ((node.name, run.verb, run.fleet) for node in run.nodes),
        )
        self._database.execute(
            "DELETE FROM runs WHERE verb = ? AND fleet = ? AND number NOT IN (SELECT run FROM nodes)",
            (run.verb, run.fleet),
        )

    def record_verified(self, fleet: str, passed: Mapping[str, str], failed: Iterable[str]) -> None:
        """Store which nodes passed their last verification; a node that failed is forgotten.

        Args:
            fleet: the lock's path.
            passed: node → digest of what it was verified against.
        """
        with self._database as database:
            database.executemany(
                "DELETE FROM verified WHERE fleet = ? AND node = ?", ((fleet, name) for name in failed)
            )
            rows = ((fleet, name, stated) for name, stated in passed.items())
            database.executemany("INSERT OR REPLACE INTO verified VALUES (?, ?, ?)", rows)

    def verified(self, fleet: str) -> dict[str, str]:
        """Return the nodes of a fleet that passed their last verification, each with the stored digest."""
        rows = self._database.execute("SELECT node, stated FROM verified WHERE fleet = ?", (fleet,))
        return dict(rows.fetchall())

    def record_events(self, events: Sequence[Event], *, run: str = "") -> None:
        """Add events to the ledger of machines, in one transaction.

        Args:
            run: id of a run whose earlier events are replaced.
        """
        query = (
            "INSERT INTO events (at, fleet, node, machine, unit, kind, what, run)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        )
        with self._database as database:
            if run:
                database.execute("DELETE FROM events WHERE run = ?", (run,))
            database.executemany(query, [astuple(event) for event in events])

    def events(self, machine: str | None = None) -> list[Event]:
        """Return the events of the ledger in the order of their times, of one machine or of all."""
        rows = self._database.execute(
            "SELECT at, fleet, node, machine, unit, kind, what, run FROM events"
            " WHERE :machine IS NULL OR machine = :machine ORDER BY at, number",
            {"machine": machine},
        )
        return [Event(*row) for row in rows]

    def lines(self, *, fleet: str | None = None, last: int = 20) -> list[Line]:
        """Return the last recorded runs, newest first, with the number of nodes in each status, also 0;
        without those of status and doctor.

        Args:
            fleet: only runs of that lock; None: of all.
            last: maximum number of runs.
        """
        query = (
            "SELECT number, id, verb, at, fleet FROM runs"
            " WHERE verb NOT IN ('status', 'doctor') AND (:fleet IS NULL OR fleet = :fleet)"
        )
        limited = f"{query} ORDER BY number DESC LIMIT :last"
        runs = self._database.execute(limited, {"fleet": fleet, "last": last}).fetchall()
        return [Line(id_, verb, at, path, self._counts(number)) for number, id_, verb, at, path in runs]

    def last_change(self, fleet: str) -> Line | None:
        """Return the last run of apply, upgrade or rollback with a fleet's lock, or None."""
        query = "SELECT number, id, verb, at, fleet FROM runs WHERE fleet = ? AND verb IN (?, ?, ?)"
        row = self._database.execute(
            f"{query} ORDER BY number DESC LIMIT 1", (fleet, "apply", "upgrade", "rollback")
        ).fetchone()
        if row is None:
            return None
        number, id_, verb, at, path = row
        return Line(id_, verb, at, path, self._counts(number))

    def looks(self, verb: str, fleet: str) -> dict[str, tuple[str, NodeDrift]]:
        """Return node → time and result of the newest run of a verb of `LOOKS` that read it."""
        rows = self._database.execute(
            "SELECT at, name, status, reason, drift FROM nodes JOIN runs ON run = number"
            " WHERE verb = ? AND fleet = ? ORDER BY number",
            (verb, fleet),
        )
        return {seen[0]: (at, _read(*seen)) for at, *seen in rows}

    def newest(self, verb: str, fleet: str) -> dict[str, tuple[str, tuple[str, ...], NodeDrift]]:
        """Return node → time, judged checks and result of the newest run of a verb that read it."""
        rows = self._database.execute(
            "SELECT at, groups, name, status, reason, drift FROM nodes JOIN runs ON run = number"
            " WHERE verb = ? AND fleet = ? ORDER BY number",
            (verb, fleet),
        )
        found = {name: (at, groups, (name, *seen)) for at, groups, name, *seen in rows}
        return {name: (at, _judged(groups, name), _read(*seen)) for name, (at, groups, seen) in found.items()}

    def ids(self, verb: str, fleet: str) -> list[str]:
        """Return the ids of the runs of a verb with a fleet's lock, oldest first."""
        query = "SELECT id FROM runs WHERE verb = ? AND fleet = ? ORDER BY number"
        return [name for (name,) in self._database.execute(query, (verb, fleet))]

    def run(self, name: str, *, fleet: str | None = None) -> Run:
        """Return a run by its id, by an unambiguous beginning or end of it, or `latest`.

        Its nodes are in the order of its groups.

        Args:
            fleet: for `latest`, only runs of that lock; by default the latest of all. Ignored for other
                names.

        Raises:
            InvalidInput: no such run, or several.
        """
        number, id_, verb, at, path, groups = self._find(name, fleet)
        rows = self._database.execute(
            "SELECT name, status, reason, drift FROM nodes WHERE run = ?", (number,)
        )
        seen = {row[0]: _read(*row) for row in rows}
        known = {
            group: Group(tuple(nodes), tuple(checks)) for group, (nodes, checks) in json.loads(groups).items()
        }
        order = [node for group in known.values() for node in group.nodes if node in seen]
        notes = self._database.execute("SELECT note FROM notes WHERE run = ? ORDER BY rowid", (number,))
        return Run(
            id_, verb, at, path, known, [seen[node] for node in order], tuple(_note(*row) for row in notes)
        )

    def run_at(self, moment: str, fleet: str) -> Run:
        """Return the last run of a fleet at or before a time; the first run if all are later.

        Args:
            moment: UTC, ISO 8601.

        Raises:
            InvalidInput: no run of the fleet is recorded.
        """
        query = "SELECT id FROM runs WHERE fleet = ? AND verb NOT IN ('status', 'doctor')"
        found = (
            self._database.execute(
                f"{query} AND at <= ? ORDER BY number DESC LIMIT 1", (fleet, moment)
            ).fetchone()
            or self._database.execute(f"{query} ORDER BY number LIMIT 1", (fleet,)).fetchone()
        )
        if found is None:
            raise InvalidInput(f"no run of {fleet} is recorded", do="gpuprov drift")
        return self.run(found[0])

    def of_node(self, node: str, *, last: int = 20) -> Iterator[tuple[Line, NodeDrift]]:
        """Yield one node's results in the last runs that include it, oldest first, without those of status
        and doctor.

        The counts of each `Line` are empty. An unknown node has no results.

        Args:
            last: maximum number of runs.
        """
        rows = self._database.execute(
            "SELECT * FROM (SELECT number, id, verb, at, fleet, name, status, reason, drift FROM nodes"
            " JOIN runs ON run = number WHERE name = ? AND verb NOT IN ('status', 'doctor')"
            " ORDER BY number DESC LIMIT ?) ORDER BY number",
            (node, last),
        )
        for _, id_, verb, at, fleet, *seen in rows:
            yield Line(id_, verb, at, fleet, {}), _read(*seen)

    def _find(self, name: str, fleet: str | None) -> tuple[int, str, str, str, str, str]:
        """Return the columns number, id, verb, at, fleet and groups of the run that `run` describes.

        Raises:
            InvalidInput: no such run, or several.
        """
        columns = "SELECT number, id, verb, at, fleet, groups FROM runs"
        if name == LATEST:
            of_fleet = "verb NOT IN ('status', 'doctor') AND (:fleet IS NULL OR fleet = :fleet)"
            query = f"{columns} WHERE {of_fleet} ORDER BY number DESC LIMIT 1"
            found = self._database.execute(query, {"fleet": fleet}).fetchall()
        else:
            either_end = "substr(id, 1, length(:name)) = :name OR substr(id, -length(:name)) = :name"
            query = f"{columns} WHERE id = :name OR {either_end} LIMIT 3"
            found = self._database.execute(query, {"name": name}).fetchall()
        if name == LATEST and not found:
            whose = f" of {fleet}" if fleet else ""
            raise InvalidInput(
                f"no run{whose} is recorded on this controller",
                expected="a run of drift, verify, apply, upgrade or repair",
                do="gpuprov drift",
            )
        if len(found) != 1:
            seen = f"{len(found)} runs match" if found else "no run is recorded as"
            raise InvalidInput(f"{seen} {name!r}", do="`gpuprov history` lists the runs")
        row: tuple[int, str, str, str, str, str] = found[0]
        return row

    def _counts(self, number: int) -> dict[Status, int]:
        """Return the number of nodes of a run in each status, also 0."""
        rows = self._database.execute(
            "SELECT status, count(*) FROM nodes WHERE run = ? GROUP BY status", (number,)
        )
        found = dict(rows.fetchall())
        return {status: found.get(status, 0) for status in get_args(Status)}

    def _prepare(self) -> None:
        """Create the tables that are missing, also those that an earlier version did not have.

        Other processes may do so at the same time.

        Raises:
            InvalidInput: a newer gpuprov wrote the file.
            DatabaseError: it is not a database.
        """
        database = self._database
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("PRAGMA synchronous = NORMAL")
        [version] = database.execute("PRAGMA user_version").fetchone()
        if version == VERSION:
            return
        if version > VERSION:
            raise InvalidInput(f"{self.path} was written by a newer gpuprov", do="upgrade gpuprov")
        database.execute("PRAGMA journal_mode = WAL")
        with database:
            database.execute("BEGIN IMMEDIATE")
            if database.execute("PRAGMA user_version").fetchone() != (VERSION,):
                for statement in filter(str.strip, TABLES.split(";")):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {VERSION}")


def keep(run: Run, narrate: Callable[[str], None]) -> None:
    """Record a run in the default history.

    No error is raised: the record is not the result of the run, and must not end it.

    Args:
        narrate: called with the message of the error.
    """
    try:
        with History() as history:
            history.record(run)
    except Exception as error:  # noqa: BLE001 - see above
        narrate(f"this run is not in the history: {error}")


def _written(node: NodeDrift) -> str:
    """Return a node's differences as JSON: a list of values for each, in the order of the fields.

    Actual values are shortened by `kept_value`. Places that set one are left out if they have more than
    `LONGEST` characters.
    """
    rows = []
    for each in node.drift:
        kept = replace(each, actual=kept_value(each.actual))
        kept = kept if len(json.dumps(kept.by)) <= LONGEST else replace(kept, by=())
        rows.append([getattr(kept, name) for name in Difference.__slots__])
    return json.dumps(rows)


def _read(name: str, status: Status, reason: str | None, drift: str) -> NodeDrift:
    """Return a node's result from the columns of its row."""
    return NodeDrift(name, status, tuple(_difference(*each) for each in json.loads(drift)), reason)


def _judged(groups: str, node: str) -> tuple[str, ...]:
    """Return the checks of a node's group, from the column of groups."""
    known = json.loads(groups).values()
    return next((tuple(checks) for nodes, checks in known if node in nodes), ())


def _note(text: str) -> SecurityNote:
    """Return a note from its JSON."""
    stated = json.loads(text)
    return SecurityNote(**{**stated, "bulletins": tuple(stated["bulletins"])})


def _difference(*values: Any) -> Difference:
    """Return a difference from its values in the order of the fields.

    Runs of an earlier version have no `by`.
    """
    stated = dict(zip(Difference.__slots__, values, strict=False))
    return Difference(**{**stated, "by": tuple(stated.get("by", ()))})
