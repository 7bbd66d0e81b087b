"""What `upgrade` and `rollback` share: a run begun or resumed, followed to its end, told and recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from gpuprov.model.lock import Lock
    from gpuprov.upgrade.context import UpgradeContext
    from gpuprov.upgrade.engine import Header, Outcome


def context_of(chosen: options.Chosen, old: Lock, new: Lock, run: Path, source: Path) -> UpgradeContext:
    """The context of a run in a folder, between two locks."""
    from gpuprov.apply.context import Options
    from gpuprov.report.progress import Progress
    from gpuprov.upgrade.context import UpgradeContext

    how = Options(chosen.forks, become_password=chosen.password)
    listen = Progress(options.note).event
    return UpgradeContext(new, run, how, listen=listen, narrate=options.note, old=old, source=source)


def begin(context: UpgradeContext, about: Header) -> UpgradeContext:
    """Put a run on the disk before anything is done."""
    from gpuprov.upgrade.context import pack
    from gpuprov.upgrade.journal import NAME, Journal

    pack(context.folder, context.old, context.lock)
    with Journal(context.folder / NAME) as journal:
        about.write(journal)
    return context


def resumed(name: str, verb: str, chosen: options.Chosen) -> UpgradeContext:
    """The context of a run that did not come to its end.

    Raises:
        InvalidInput: no such run, or it did.
    """
    from gpuprov.upgrade.context import unpack
    from gpuprov.upgrade.engine import header
    from gpuprov.upgrade.journal import read
    from gpuprov.upgrade.start import ended, find_run, outlive

    run = find_run(name, verb)
    entries = read(run)
    if ended(entries):
        raise InvalidInput(f"{run.name} has come to its end", do=f"gpuprov history --run {run.name}")
    context = context_of(chosen, *unpack(run), run, run.with_name(header(entries).source))
    options.note(f"resuming {run.name}")
    outlive(context)
    return context


def go(context: UpgradeContext, lock_path: Path, output: str) -> Exit:
    """Follow a run to its end; when every node of the lock has moved, the lock file moves with them."""
    from gpuprov.upgrade.engine import Engine
    from gpuprov.upgrade.journal import NAME, Journal
    from gpuprov.upgrade.text import outcome_document, outcome_lines

    with Journal(context.folder / NAME) as journal:
        engine = Engine(context, journal)
        outcome = engine.go()
    _adopt(context, outcome, lock_path)
    _record(context, outcome, lock_path)
    if output == "json":
        options.print_json(outcome_document(context.id, outcome))
    else:
        for line in outcome_lines(outcome):
            click.echo(line)
    options.note(f"everything that was done is in {context.folder}")
    return outcome.exit_code


def _record(context: UpgradeContext, outcome: Outcome, lock_path: Path) -> None:
    """Keep the run in the history: a node that came where it was to go was verified there."""
    from gpuprov.cli.common.reports import keep
    from gpuprov.drift.judge import NodeDrift
    from gpuprov.history.record import of_nodes

    nodes = [
        NodeDrift(name, "error" if reason else "in_sync", reason=reason)
        for name in outcome.ends
        for reason in [outcome.reasons.get(name)]
    ]
    keep(of_nodes(context.id, context.id.split("-")[2], context.lock, lock_path, nodes))


def _adopt(context: UpgradeContext, outcome: Outcome, lock_path: Path) -> None:
    from gpuprov.model.lock import write_lock

    for end, lock in (("new", context.lock), ("old", context.old)):
        everywhere = all(outcome.ends.get(node) == end for node in lock.hosts())
        if everywhere and not outcome.stopped:
            write_lock(lock, lock_path)
            options.note(f"every node is on it: {lock_path} is the {end} lock now; commit it")
