"""`gpuprov report`: print a recorded run, or write it to files."""

from __future__ import annotations

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.report_files import ReportFiles, report_options
from gpuprov.cli.common.security import print_notes
from gpuprov.cli.common.terminal import say
from gpuprov.errors import Exit


@click.command()
@click.argument("run", default="latest")
@report_options
@options.output_option
def command(run: str, reports: ReportFiles, output: str) -> Exit:
    """Show the results of RUN: an id of `gpuprov history`, its last letters, or `latest`.

    With --html, --junit or --prometheus files are written and nothing is printed. No node is read.
    """
    from gpuprov.history import History
    from gpuprov.report.documents import drift_document
    from gpuprov.report.text import drift_lines

    with History() as history:
        kept = history.run(run)
    reports.write(kept)
    if output == "json":
        options.print_json({**drift_document(kept.nodes, kept.at, kept.notes), "run": kept.id})
    elif not reports.wanted:
        for line in drift_lines(kept.nodes):
            say(line)
        print_notes(kept.notes)
    return Exit.OK
