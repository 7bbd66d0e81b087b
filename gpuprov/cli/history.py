"""`gpuprov history`: show recorded runs, the history of one node, and changes between two runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import completion, options
from gpuprov.cli.common.terminal import tell
from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from gpuprov.history import History


@click.command()
@click.argument("node", required=False, shell_complete=completion.nodes)
@click.option(
    "--since",
    metavar="RUN|TIME",
    help="show what changed since this run, or since the last one before a time: 7d, 12h, 2026-01-31",
)
@click.option(
    "--to", "until", metavar="RUN", default="latest", show_default=True, help="with --since: up to this run"
)
@click.option(
    "-n", "--last", type=click.IntRange(1), default=20, show_default=True, help="number of runs to show"
)
@click.option("--run", "result", metavar="RUN", help="show the steps of an upgrade, a rollback or a repair")
@click.option("--signed", is_flag=True, help="list the modules that the site's key has signed, newest first")
@click.option("--worst", is_flag=True, help="rank nodes and GPUs by hours out of service, faults and repairs")
@options.output_option
def command(
    node: str | None,
    since: str | None,
    until: str,
    last: int,
    result: str | None,
    signed: bool,
    worst: bool,
    output: str,
) -> Exit:
    """List the runs of drift, apply and verify, newest first; or show the history of one NODE.

    RUN is an id of the list, its last letters, or `latest`. With a time, the latest runs of one fleet are
    compared. --worst reads the ledger of machines, by serial number, since the time of --since.
    """
    from gpuprov.history import History

    if signed:
        return _signed(last, output)
    if result:
        return _journal(result, output)
    if worst:
        return _worst(since, last, output)
    if node and since:
        raise InvalidInput(f"both {node} and --since {since}", do="give one of them")
    with History() as history:
        if since:
            return _changes(history, since, until, output)
        return _of_node(history, node, last, output) if node else _runs(history, last, output)


def _journal(name: str, output: str) -> Exit:
    """Show the steps of an upgrade, a rollback or a repair; errors as of `find_run` and `read`."""
    from dataclasses import asdict

    from gpuprov.files.runs import verb_of
    from gpuprov.report.repair import repair_journal_lines
    from gpuprov.report.upgrade import journal_lines
    from gpuprov.upgrade.find import find_run
    from gpuprov.upgrade.header import header
    from gpuprov.upgrade.journal import read
    from gpuprov.upgrade.repair.header import repair_header

    run = find_run(name, "upgrade", "rollback", "repair")
    entries = read(run)
    if output == "json":
        documents = [asdict(entry) for entry in entries]
        options.print_json({"schema": "gpuprov.journal/1", "run": run.name, "entries": documents})
        return Exit.OK
    if verb_of(run.name) == "repair":
        lines = repair_journal_lines(repair_header(entries), entries)
    else:
        lines = journal_lines(header(entries), entries)
    for line in lines:
        tell(line)
    return Exit.OK


def _signed(last: int, output: str) -> Exit:
    """Show the journal of signatures, newest first; -n limits the number of modules. Raises as its `read`."""
    from dataclasses import asdict

    from gpuprov.apply.kernel_modules.journal import read

    entries = read()[: -last - 1 : -1]
    if output == "json":
        options.print_json({"schema": "gpuprov.signed/1", "signed": [asdict(each) for each in entries]})
        return Exit.OK
    rows = [
        [
            each.at,
            "+".join(each.build.get("builders", ())),
            each.build.get("driver", ""),
            each.build.get("kernel", ""),
            each.file,
            each.certificate[:12],
            each.before[:12],
            each.after[:12],
            each.run,
        ]
        for each in entries
    ]
    heads = ["AT", "BUILDER", "DRIVER", "KERNEL", "FILE", "CERTIFICATE", "BEFORE", "AFTER", "RUN"]
    options.print_table([heads, *rows])
    return Exit.OK


def _runs(history: History, last: int, output: str) -> Exit:
    """Show the last runs, newest first, with the number of nodes in each state."""
    from dataclasses import asdict

    lines = history.lines(last=last)
    if output == "json":
        options.print_json({"schema": "gpuprov.history/1", "runs": [asdict(line) for line in lines]})
        return Exit.OK
    rows = [[line.id, line.at, *map(str, line.counts.values()), line.fleet] for line in lines]
    options.print_table([["RUN", "AT", "IN SYNC", "DRIFTED", "UNREACHABLE", "ERROR", "FLEET"], *rows])
    return Exit.OK


def _of_node(history: History, node: str, last: int, output: str) -> Exit:
    """Show the last results of a node: the oldest of them in full, then the changes.

    Raises:
        InvalidInput: no recorded run has read the node.
    """
    from dataclasses import asdict

    from gpuprov.history import changes
    from gpuprov.report.text import change_lines, drift_lines

    result = list(history.of_node(node, last=last))
    if not result:
        raise InvalidInput(f"no run has read {node!r}", do="`gpuprov history` lists the runs")
    if output == "json":
        runs = [{"run": line.id, "at": line.at, "verb": line.verb, **asdict(seen)} for line, seen in result]
        options.print_json({"schema": "gpuprov.history/1", "node": node, "runs": runs})
        return Exit.OK
    before = None
    for line, seen in result:
        lines = drift_lines([seen]) if before is None else change_lines(changes([before], [seen]))
        for text in lines:
            tell(f"{line.at}  {line.id}  {text}")
        before = seen
    return Exit.OK


def _worst(since: str | None, last: int, output: str) -> Exit:
    """Show the nodes and GPUs with most hours out of service, faults and repairs; -n limits their number.

    Raises:
        InvalidInput: `since` is not a time.
    """
    from gpuprov.history import History
    from gpuprov.history.ledger import worst
    from gpuprov.report.ledger import worst_document, worst_lines

    moment = _moment(since) if since else ""
    if moment is None:
        raise InvalidInput(f"--worst --since {since}", expected="a time: 90d, 12h, 2026-01-31")
    with History() as history:
        found = worst(history.events(), since=moment)[:last]
    if output == "json":
        options.print_json(worst_document(found, moment))
        return Exit.OK
    for line in worst_lines(found) if found else ["no machine has failed"]:
        tell(line)
    return Exit.OK


def _moment(text: str) -> str | None:
    """Return the time that a text states, UTC in ISO 8601; None if it is not a time.

    Times are `7d`, `12h`, `2w`, and days or times in ISO 8601, by this machine's clock and time zone.
    """
    from datetime import UTC, datetime, timedelta

    if found := re.fullmatch(r"([0-9]{1,4})([hdw])", text):
        unit = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}[found[2]]
        return (datetime.now(UTC) - int(found[1]) * unit).isoformat(timespec="seconds")
    if not re.match(r"[0-9]{4}-", text):
        return None  # an id begins with eight digits
    try:
        return datetime.fromisoformat(text).astimezone(UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return None


def _changes(history: History, since: str, until: str, output: str) -> Exit:
    """Show the changes between two runs; return exit code 3 if there are any.

    Args:
        since: the earlier run: an id, its last letters, `latest`, or a time that it must not be later than.
        until: the later run; `latest` is the latest run of the same fleet.
    """
    from dataclasses import asdict

    from gpuprov.history import changes
    from gpuprov.report.text import change_lines

    moment = _moment(since)
    if moment is None:
        before = history.run(since)
        after = history.run(until, fleet=before.fleet)
    else:
        after = history.run(until)
        before = history.run_at(moment, after.fleet)
    found = list(changes(before.nodes, after.nodes))
    if output == "json":
        document = {"schema": "gpuprov.changes/1", "since": before.id, "to": after.id}
        options.print_json(document | {"changes": [asdict(change) for change in found]})
    else:
        options.note(f"from {before.id} to {after.id}")
        for text in change_lines(found) if found else ["nothing changed"]:
            tell(text)
    return Exit.DRIFT if found else Exit.OK
