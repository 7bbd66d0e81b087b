"""What `upgrade` and `rollback` share: a run begun or resumed, followed to its end, told and recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from gpuprov.upgrade.context import Trip
    from gpuprov.upgrade.engine import Header, Outcome


def trip_of(chosen: options.Chosen, new_path: Path, run: Path) -> Trip:
    """A trip from the chosen lock to another one; its run's folder is still to come."""
    from gpuprov.apply.playbook import Options
    from gpuprov.model.lock import read_lock
    from gpuprov.report.progress import Progress
    from gpuprov.upgrade.context import Trip

    how = Options(chosen.forks, become_password=chosen.password)
    listen = Progress(options.note).event
    return Trip(run, run, chosen.lock, read_lock(new_path), how, listen, options.note)


def begin(trip: Trip, about: Header) -> Trip:
    """Put a run on the disk before anything is done."""
    from gpuprov.upgrade.context import pack
    from gpuprov.upgrade.journal import NAME, Journal

    pack(trip.run, trip.old, trip.new)
    with Journal(trip.run / NAME) as journal:
        about.write(journal)
    return trip


def resumed(name: str, verb: str, chosen: options.Chosen) -> Trip:
    """The trip of a run that did not come to its end.

    Raises:
        InvalidInput: no such run, or it did.
    """
    from gpuprov.apply.playbook import Options
    from gpuprov.report.progress import Progress
    from gpuprov.upgrade.context import Trip, unpack
    from gpuprov.upgrade.engine import header
    from gpuprov.upgrade.journal import read
    from gpuprov.upgrade.start import ended, find_run, outlive

    run = find_run(name, verb)
    entries = read(run)
    if ended(entries):
        raise InvalidInput(f"{run.name} has come to its end", do=f"gpuprov history --run {run.name}")
    how = Options(chosen.forks, become_password=chosen.password)
    source = run.with_name(header(entries).source)
    trip = Trip(run, source, *unpack(run), how, Progress(options.note).event, options.note)
    options.note(f"resuming {run.name}")
    outlive(run, trip)
    return trip


def go(trip: Trip, lock_path: Path, output: str) -> Exit:
    """Follow a run to its end; when every node of the lock has moved, the lock file moves with them."""
    from gpuprov.upgrade.engine import Engine
    from gpuprov.upgrade.journal import NAME, Journal
    from gpuprov.upgrade.text import outcome_document, outcome_lines

    with Journal(trip.run / NAME) as journal:
        engine = Engine(trip, journal)
        outcome = engine.go()
    _adopt(trip, outcome, lock_path)
    _record(trip, outcome, lock_path)
    if output == "json":
        options.print_json(outcome_document(trip.id, outcome))
    else:
        for line in outcome_lines(outcome):
            click.echo(line)
    options.note(f"everything that was done is in {trip.run}")
    return outcome.exit_code


def _record(trip: Trip, outcome: Outcome, lock_path: Path) -> None:
    """Keep the run in the history: a node that came where it was to go was verified there."""
    from gpuprov.cli.common.reports import keep
    from gpuprov.drift.judge import NodeDrift
    from gpuprov.history.record import of_nodes

    nodes = [
        NodeDrift(name, "error" if reason else "in_sync", reason=reason)
        for name in outcome.ends
        for reason in [outcome.reasons.get(name)]
    ]
    keep(of_nodes(trip.id, trip.id.split("-")[2], trip.new, lock_path, nodes))


def _adopt(trip: Trip, outcome: Outcome, lock_path: Path) -> None:
    from gpuprov.model.lock import write_lock

    for end, lock in (("new", trip.new), ("old", trip.old)):
        everywhere = all(outcome.ends.get(node) == end for node in lock.hosts())
        if everywhere and not outcome.stopped:
            write_lock(lock, lock_path)
            options.note(f"every node is on it: {lock_path} is the {end} lock now; commit it")
