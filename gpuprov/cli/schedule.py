"""`gpuprov schedule`: nightly drift, or an upgrade in its window, by systemd, cron or CI."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from gpuprov.upgrade.schedule import Job


@click.command()
@click.argument("what", type=click.Choice(["drift", "upgrade"]))
@click.option(
    "--as", "kind", type=click.Choice(["systemd", "cron", "ci"]), default="systemd", show_default=True
)
@options.lock_option
@click.option(
    "--to", "new_path", type=click.Path(path_type=Path, dir_okay=False), help="upgrade: to which lock"
)
@click.option("--notify", metavar="COMMAND", help="gets what there is to say on its standard input")
@click.option(
    "--write",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="write the files there instead of showing them, for example /etc/systemd/system",
)
def command(
    what: str, kind: str, lock_path: Path, new_path: Path | None, notify: str | None, folder: Path | None
) -> Exit:
    """Write what runs `gpuprov drift` every night, or `gpuprov upgrade` when the fleet's window opens.

    Nothing is enabled: that stays your own step, and is named at the end.
    """
    from gpuprov.model.documents import write_text
    from gpuprov.upgrade import schedule

    job = _job(what, lock_path, new_path, notify)
    program = "gpuprov" if kind == "ci" else shutil.which("gpuprov") or str(Path(sys.argv[0]).absolute())
    texts = schedule.files(job, kind, program)  # type: ignore[arg-type]
    for name, text in texts.items():
        if folder:
            write_text(folder / name, text)
            options.note(f"{folder / name} written")
        else:
            click.echo(f"# {name}\n{text}")
    if kind == "systemd":
        options.note(f"systemctl daemon-reload && systemctl enable --now gpuprov-{what}.timer")
    return Exit.OK


def _job(what: str, lock_path: Path, new_path: Path | None, notify: str | None) -> Job:
    from gpuprov.model.lock import read_lock
    from gpuprov.upgrade import schedule

    here = lock_path.absolute().parent
    if what == "drift":
        read_lock(lock_path)
        return schedule.drift(here, notify)
    if new_path is None:
        raise InvalidInput("an upgrade to what?", do="name the new lock with --to")
    rollout = read_lock(new_path).rollout
    return schedule.upgrade(here, new_path.absolute(), rollout.window if rollout else None, notify)
