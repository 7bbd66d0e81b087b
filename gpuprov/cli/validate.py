"""`gpuprov validate`: find mistakes in fleet.yml, profiles and the lock, without a network."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import tell
from gpuprov.errors import Exit, worst
from gpuprov.untrusted.within_limits import within_limits

SCHEMA = "gpuprov.validation/1"


@click.command()
@options.fleet_option("the fleet to read; its profiles are read with it")
@click.option(
    "--lock",
    "lock_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="its lock  [default: next to the fleet, if there is one]",
)
@options.output_option
@within_limits()
def command(fleet: Path, lock_path: Path | None, output: str) -> Exit:
    """Check fleet.yml, the profiles next to it and the lock; show every error with its file and line.

    Nothing is downloaded and no node is read, so it can run before every commit. Exit 2 for an error, 5 if
    no such stack can work, 3 if the lock was made from other files.
    """
    from gpuprov.locking.validation import validate_files

    warnings: list[str] = []
    result = validate_files(fleet, lock_path, warnings.append)
    if output == "json":
        problems = [asdict(each) for each in result.problems]
        for each in problems:
            del each["exit_code"]
        options.print_json(
            {
                "schema": SCHEMA,
                "valid": not problems,
                "files": result.files,
                "problems": problems,
                "warnings": warnings,
            }
        )
    else:
        for warning in warnings:
            options.warn(warning)
        for problem in result.problems:
            tell(str(problem))
        found = len(result.problems)
        said = "valid" if not found else f"{found} problem{'s' if found > 1 else ''}"
        options.note(f"{', '.join(result.files)}: {said}")
    return worst(*(each.exit_code for each in result.problems))
