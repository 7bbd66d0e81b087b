"""`gpuprov drift`: show the nodes' differences from the lock, in seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import completion, options
from gpuprov.cli.common.ahead import import_ahead
from gpuprov.cli.common.report_files import ReportFiles, report_options
from gpuprov.cli.common.security import notes_about, print_notes, read_ahead
from gpuprov.cli.common.terminal import say, tell, waiting
from gpuprov.cli.common.this_machine import local_option
from gpuprov.errors import Exit, InvalidInput
from gpuprov.untrusted import json_text

if TYPE_CHECKING:
    from gpuprov.history import Run
    from gpuprov.model.lock import Lock

LOG = logging.getLogger(__name__)
WATCH_S = 30.0


@click.command()
@options.on_nodes
@local_option
@click.option(
    "--baseline",
    metavar="RUN",
    help="show only what is new since a run: `latest`, or an id of `gpuprov history`",
    shell_complete=completion.runs,
)
@click.option(
    "--watch",
    type=click.FloatRange(min=1),
    is_flag=False,
    flag_value=WATCH_S,
    metavar="[SECONDS]",
    help=f"read again every SECONDS ({WATCH_S:g}) and print changes, until interrupted",
)
@click.option(
    "--against-majority",
    "uniform",
    is_flag=True,
    help="show nodes that differ from most of the others; see below",
)
@options.identity_option
@options.known_hosts_option
@report_options
def command(
    chosen: options.Chosen,
    output: str,
    local: bool,
    baseline: str | None,
    watch: float | None,
    uniform: bool,
    identity: str | None,
    known_hosts: str | None,
    reports: ReportFiles,
) -> Exit:
    """Read every node, and show what differs from the lock. Changes nothing.

    NODES are names, ranges (gpu[01-64]) or groups; by default all. Exit 3 if something differs. Versions that
    a security bulletin concerns are notes, not differences.

    With --against-majority, nodes are compared with each other: the nodes of a group of the lock or, without
    a lock, NODES as [USER@]HOST[:PORT].
    """
    chosen = replace(chosen, local=local)
    look = partial(_look_around, chosen, identity, known_hosts) if uniform else partial(_look, chosen, local)
    if baseline and watch:
        raise InvalidInput("--watch with --baseline", do="leave out --baseline: --watch prints changes only")
    if local and uniform:
        raise InvalidInput("--local with --against-majority", do="leave out --local or --against-majority")
    if watch is not None:
        return _watch(look, watch, output, reports)
    return _look_once(look, baseline, output, reports)


def _look(chosen: options.Chosen, local: bool) -> Run:
    """Survey the chosen nodes, or this machine if `local`, and return the result as a run.

    The log, which -v prints, names roles without a check, as the lock states no settings of them.
    """
    from gpuprov.roles import unchecked

    for group, roles in ((name, unchecked(each)) for name, each in chosen.lock.groups.items()):
        LOG.info("%s: not checked, as the lock states nothing of them: %s", group, ", ".join(roles) or "none")

    if local:
        from gpuprov.drift.local import survey_here

        found = survey_here(chosen.lock, chosen.names)
    else:
        from gpuprov.drift.survey import survey

        count = len(chosen.names)
        with waiting(f"asking {count} node{'s' if count > 1 else ''}", of=count) as answered:
            found = survey(
                chosen.lock,
                chosen.names,
                dispatch=chosen.dispatch,
                answered=answered,
                meanwhile=partial(_read_ahead, chosen.lock),
            )
    from gpuprov.history.record import of_survey

    return of_survey(chosen.lock, chosen.lock_path, found, notes=notes_about(chosen.lock, found))


def _read_ahead(lock: Lock) -> None:
    """Import what judges and prints answers, and read the bulletins: it takes as long as a node's answer."""
    import_ahead("history", "model.nodeset", "report.documents", "report.text")
    read_ahead(lock)


def _look_around(chosen: options.Chosen, identity: str | None, known_hosts: str | None) -> Run:
    """Compare the nodes with each other, and return the result as a run.

    With a lock file, nodes are compared within their group; without it, all stated hosts with each other.
    """
    from gpuprov.drift.survey import gather, gather_from
    from gpuprov.history.record import of_majority

    if chosen.lock_path.is_file():
        of_host = {host: name for name, group in chosen.lock.groups.items() for host in group.hosts}
        groups = {name: of_host[name] for name in chosen.names}
        answers = gather(chosen.lock, chosen.names, dispatch=chosen.dispatch)
        return of_majority(groups, answers, str(chosen.lock_path.absolute()))
    targets = [options.target(host, identity, known_hosts) for host in chosen.hosts]
    return of_majority(dict.fromkeys(chosen.hosts, "all"), gather_from(targets, dispatch=chosen.dispatch), "")


def _look_once(look: Callable[[], Run], baseline: str | None, output: str, reports: ReportFiles) -> Exit:
    """Survey nodes once, keep the run, write the reports and print the result; return the exit code.

    With a baseline, a run's id or `latest`, only news since that run are printed and count for the exit code.
    """
    run = look()

    from gpuprov.drift.judge import exit_code
    from gpuprov.history import History, keep, news
    from gpuprov.report.documents import drift_document
    from gpuprov.report.text import drift_lines, held_lines, see_doctor

    found, before = run.nodes, None
    if baseline:
        with History() as history:
            before = history.run(baseline, fleet=run.fleet)
        found = news(before.nodes, run.nodes)
    keep(run, options.note)
    reports.write(run)
    if output == "json":
        document = {**drift_document(found, run.at, run.notes), "run": run.id}
        options.print_json(document | ({"baseline": before.id} if before else {}))
    else:
        for line in drift_lines(found):
            tell(line)
        for line in (*held_lines(found), *filter(None, [see_doctor(found)])):
            options.note(line)
        if before and not found:
            tell(f"nothing new since {before.id}")
        print_notes(run.notes)
    return exit_code(found)


def _watch(look: Callable[[], Run], seconds: float, output: str, reports: ReportFiles) -> Exit:
    """Check nodes until interrupted; print and keep only the first run and runs that differ from the previous
    one. Report files are written after each.

    Args:
        seconds: time from the start of a survey to the start of the next.
    """
    from gpuprov.history import changes, keep
    from gpuprov.report.documents import drift_document
    from gpuprov.report.text import change_lines, drift_lines

    before: Run | None = None
    while True:
        begun = time.monotonic()
        run = look()
        reports.write(run)
        changed = list(changes(before.nodes, run.nodes)) if before else []
        if before is None or changed:
            keep(run, options.note)
            if output == "json":
                document = {**drift_document(run.nodes, run.at, run.notes), "run": run.id}
                say(json_text(document, indent=None))
            else:
                for line in change_lines(changed) if before else drift_lines(run.nodes):
                    tell(f"{run.at[11:19]}  {line}")
        before = run
        time.sleep(max(0.0, seconds - (time.monotonic() - begun)))
