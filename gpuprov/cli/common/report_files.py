"""Report files of a run that the command line requests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gpuprov.history import Run

FILE = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True)
class ReportFiles:
    """Files to write; None for those that are not requested."""

    junit: Path | None
    html: Path | None
    prometheus: Path | None

    @property
    def wanted(self) -> bool:
        """Whether any report is to be written to a file."""
        return bool(self.paths)

    @property
    def paths(self) -> list[Path]:
        """Paths of the requested files: HTML, JUnit, Prometheus."""
        return [path for path in (self.html, self.junit, self.prometheus) if path]

    def write(self, run: Run) -> None:
        """Write the requested files.

        The page of a run of accept whose measurements are kept has plots, that of another run a heat map.

        Raises:
            InvalidInput: a file cannot be written.
        """
        if self.junit:
            from gpuprov.model.documents import write_text
            from gpuprov.report.junit import drift_xml

            write_text(self.junit, drift_xml(run))
        if self.html:
            from gpuprov.report.html import write_html
            from gpuprov.report.plots import read_kept, write_page

            if run.verb == "accept" and read_kept(run.id) is not None:
                write_page(run.id, self.html)
            else:
                write_html(run, self.html)
        if self.prometheus:
            from gpuprov.report.prometheus import write_textfile

            write_textfile(run, self.prometheus)


def report_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add --html, --junit and --prometheus to a verb, which is called with `reports` in their place."""

    @click.option(
        "--html", type=FILE, help="write an HTML page to this file: a heat map, or plots of a run of accept"
    )
    @click.option("--junit", type=FILE, help="write JUnit XML to this file")
    @click.option(
        "--prometheus", type=FILE, help="write metrics for node_exporter's textfile collector to this file"
    )
    @functools.wraps(verb)
    def with_reports(*, html: Path | None, junit: Path | None, prometheus: Path | None, **others: Any) -> Any:
        return verb(reports=ReportFiles(junit, html, prometheus), **others)

    return with_reports
