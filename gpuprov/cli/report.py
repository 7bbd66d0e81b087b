"""`gpuprov report`: print a recorded run or write it to files, or judge a fleet by criteria."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.report_files import ReportFiles, report_options
from gpuprov.cli.common.security import print_notes
from gpuprov.cli.common.terminal import tell
from gpuprov.errors import Exit

if TYPE_CHECKING:
    from gpuprov.history import Run


@click.command()
@click.argument("run", default="latest")
@click.option(
    "--criteria",
    metavar="FILE|public",
    help="judge the fleet by a list of criteria, such as the shipped one of public lists, in place of a RUN",
)
@options.lock_option
@report_options
@options.output_option
def command(run: str, criteria: str | None, lock_path: Path, reports: ReportFiles, output: str) -> Exit:
    """Show the results of RUN: an id of `gpuprov history`, its last letters, or `latest`.

    `latest` is the last run of the lock's fleet; without a lock, of all.

    With --html, --junit or --prometheus only the names of the written files are printed, to standard error.
    No node is read.

    --criteria shows for each criterion the recorded value of the lock's nodes, pass or fail, and the command
    that shows it. A result that is older than 31 days, or missing for a node, is no evidence. Exit 1 if a
    criterion fails.
    """
    if criteria is not None:
        return _criteria(criteria, lock_path, output)
    from gpuprov.history import History
    from gpuprov.report.documents import drift_document
    from gpuprov.report.text import drift_lines

    with History() as history:
        kept = history.run(run, fleet=str(lock_path.absolute()) if lock_path.is_file() else None)
    reports.write(kept)
    if output == "json":
        options.print_json({**drift_document(kept.nodes, kept.at, kept.notes), "run": kept.id})
    elif reports.wanted:
        options.note(f"{', '.join(map(str, reports.paths))} written from {kept.id}")
    else:
        for line in [*_health(kept), *drift_lines(kept.nodes)]:
            tell(line)
        print_notes(kept.notes)
    return Exit.OK


def _health(run: Run) -> list[str]:
    """Return a line for each node of a run with faults at its last examination, or out of service now."""
    from gpuprov.history import History
    from gpuprov.history.ledger import out_now
    from gpuprov.report.overview import health_lines

    with History() as history:
        out = out_now(history.events(), run.fleet)
        looks = history.looks("doctor", run.fleet)
    return list(health_lines([node.name for node in run.nodes], looks, out))


def _criteria(name: str, lock_path: Path, output: str) -> Exit:
    """Judge the fleet by criteria, from the newest runs in the history, and print the result; return FAILED
    if one fails.

    Raises as `read_criteria`, `read_lock` and `History`.
    """
    from gpuprov.history import History
    from gpuprov.model.lock import read_lock
    from gpuprov.report.criteria import (
        Evidence,
        criteria_document,
        criteria_lines,
        judge_criteria,
        read_criteria,
    )

    stated, nodes, fleet = read_criteria(name), list(read_lock(lock_path).hosts()), str(lock_path.absolute())
    with History() as history:
        runs = {verb: history.newest(verb, fleet) for verb in ("verify", "drift", "doctor", "accept")}
        events = [event for event in history.events() if event.fleet == fleet]
    found = judge_criteria(stated, Evidence(nodes, runs, events))
    if output == "json":
        options.print_json(criteria_document(stated.title, found, len(nodes)))
    else:
        for line in criteria_lines(stated.title, found):
            tell(line)
    return Exit.FAILED if any(each.result == "fail" for each in found) else Exit.OK
