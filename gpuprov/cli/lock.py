"""`gpuprov lock`: fleet.yml → fleet.lock.yml."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprov.cli import options
from gpuprov.errors import Exit


@click.command()
@click.option(
    "-F",
    "--fleet",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("fleet.yml"),
    show_default=True,
    help="what is wanted",
)
@click.option(
    "--lock",
    "lock_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="the file to write  [default: fleet.lock.yml beside the fleet]",
)
@click.option("--check", is_flag=True, help="write nothing; exit 3 when the lock is not current")
@click.option("--upgrade", is_flag=True, help="move to what would be chosen today, and show the change")
def command(fleet: Path, lock_path: Path | None, check: bool, upgrade: bool) -> Exit:
    """Work out exactly what fleet.yml means: versions, packages, settings, each with its reason.

    What is locked stays as it is while the fleet allows it; --upgrade moves it.
    """
    from gpuprov.lock import read_lock, render_lock, write_lock
    from gpuprov.locking import build_lock, changes

    path = lock_path or fleet.with_name(f"{fleet.stem}.lock.yml")
    previous = read_lock(path) if path.exists() else None
    lock = build_lock(fleet, previous=None if upgrade else previous, narrate=options.note)
    moved = changes(previous, lock)
    if check:
        current = previous is not None and render_lock(previous) == render_lock(lock)
        options.note(f"{path} is current" if current else f"{path} is stale: run `gpuprov lock`")
        for line in moved:
            click.echo(line)
        return Exit.OK if current else Exit.DRIFT
    write_lock(lock, path)
    for line in moved:
        click.echo(line)
    options.note(f"{path} written; review it, commit it, then: gpuprov plan")
    return Exit.OK
