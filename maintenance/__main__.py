"""Command line of `scripts/catalog`, `scripts/docs manual` and `scripts/docs schemastore`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gpuprov.catalog.releases import OWN
from gpuprov.errors import Exit
from gpuprov.files.writing import replace_file
from maintenance.case import command as case
from maintenance.data_files import render
from maintenance.manual import manual
from maintenance.refresh import command as refresh
from maintenance.running import run
from maintenance.schemastore import write_pull_request

MANUAL = Path(__file__).parents[1] / "docs/gpuprov.1"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Maintain gpuprov's catalog and its generated files."""


command.add_command(refresh, "refresh")
command.add_command(case, "case")


@command.command("format")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False, exists=True))
def format_files(files: tuple[Path, ...]) -> Exit:
    """Write FILES of the catalog again in their text format; without FILES all of them."""
    for path in files or sorted(OWN.glob("*.json")):
        replace_file(path, render(json.loads(path.read_text(encoding="utf-8"))))
    return Exit.OK


@command.command("manual")
def write_manual() -> Exit:
    """Write the manual page that the wheel contains."""
    replace_file(MANUAL, manual())
    return Exit.OK


@command.command("schemastore")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def schemastore(folder: Path) -> Exit:
    """Write the files of a pull request to SchemaStore into a new FOLDER."""
    for path in write_pull_request(folder):
        click.echo(path)
    return Exit.OK


def main(arguments: list[str]) -> int:
    """Run a command; return its exit code. Errors are printed to standard error."""
    return run(command, "scripts/catalog", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
