"""`gpuprov schedule`: write files for nightly checks or modules, or an upgrade: systemd, cron or CI."""

from __future__ import annotations

import pwd
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import show
from gpuprov.errors import Exit, InvalidInput

if TYPE_CHECKING:
    from gpuprov.upgrade.schedule import Job

FORGES = ("github", "gitlab")


@click.command()
@click.argument("what", type=click.Choice(["drift", "modules", "accept", "doctor", "upgrade"]))
@click.option(
    "--as",
    "kind",
    type=click.Choice(["systemd", "cron", "github", "gitlab"]),
    default="systemd",
    show_default=True,
    help="program that runs the job",
)
@options.lock_option
@click.option(
    "--to", "new_path", type=click.Path(path_type=Path, dir_okay=False), help="upgrade: the lock to move to"
)
@click.option(
    "--share",
    metavar="PERCENT",
    default="100%",
    show_default=True,
    help="accept: share of the fleet to test in a week",
)
@click.option("--notify", metavar="COMMAND", help="command that gets the report on its standard input")
@click.option(
    "--user",
    default="gpuprov",
    show_default=True,
    help="systemd: user of the job; it must be able to read the lock's folder, and needs no other right",
)
@click.option(
    "--metrics",
    type=click.Path(path_type=Path, file_okay=False),
    help="drift: folder of node_exporter's textfile collector, for gpuprov.prom",
)
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="drift: file for an HTML page, written after each run",
)
@click.option(
    "--wheel",
    metavar="URL#sha256=HASH|FILE",
    help="github, gitlab: gpuprov's wheel by URL, or a file of the fleet's repository",
)
@click.option(
    "--write",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="write the files to this folder, such as /etc/systemd/system, in place of printing them",
)
def command(
    what: str,
    kind: str,
    lock_path: Path,
    new_path: Path | None,
    share: str,
    notify: str | None,
    user: str,
    metrics: Path | None,
    page: Path | None,
    wheel: str | None,
    folder: Path | None,
) -> Exit:
    """Write a job that runs `gpuprov drift` every night, or `gpuprov upgrade` when the fleet's window opens.

    `modules` applies the driver's role every night where it differs: a kernel that updates have installed
    gets its module, compiled once and distributed, before a node boots it. Nodes whose GPUs are in use are
    skipped. `accept` tests some nodes under load every night, so that a week has a share of the fleet: idle
    ones in turn, drained for it, and none in use. `doctor` examines all nodes every night, for fleets without
    the role `health`.

    The job is for systemd or cron of this machine, or for GitHub or GitLab, where it installs gpuprov from
    --wheel, reads its SSH key from the forge's secrets, stores JUnit XML and opens an issue. Nothing is
    enabled: the commands for that are printed at the end.
    """
    from gpuprov.inventory.wheel import wheel_of_job
    from gpuprov.model.documents import write_text
    from gpuprov.upgrade import schedule

    of_a_forge = kind in FORGES
    if folder and not of_a_forge and not folder.exists():
        raise InvalidInput(
            f"the folder {folder} does not exist", do="--write /etc/systemd/system, or create it"
        )
    _refuse_mixed(what, kind, wheel, metrics, page)
    job = replace(
        _job(what, lock_path, new_path, notify, share),
        user=user,
        metrics=metrics.absolute() / "gpuprov.prom" if metrics else None,
        page=page.absolute() if page else None,
    )
    if of_a_forge:
        job = replace(job, wheel=wheel_of_job(wheel, job.folder))
    program = "gpuprov" if of_a_forge else shutil.which("gpuprov") or str(Path(sys.argv[0]).absolute())
    texts = schedule.files(job, kind, program)  # type: ignore[arg-type]
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        if folder:
            write_text(folder / name, text, follow=False)
            options.note(f"{folder / name} written")
        else:
            show(f"# {name}\n{text}")
    if kind == "systemd":
        needed = job.folder, Path(program), Path(sys.executable).resolve()
        if user == "root":
            _as_root(*needed)
        else:
            _as_user(user, *needed)
        for written in filter(None, (job.metrics, job.page)):
            options.note(f"install -d -o {user} {written.parent}")
        options.note(f"systemctl daemon-reload && systemctl enable --now gpuprov-{what}.timer")
    return Exit.OK


def _refuse_mixed(what: str, kind: str, wheel: str | None, metrics: Path | None, page: Path | None) -> None:
    """Raise InvalidInput for an option that the job or the program that runs it does not have."""
    of_a_forge = kind in FORGES
    if wheel and not of_a_forge:
        raise InvalidInput(
            f"--wheel with --as {kind}", do="leave out --wheel, which is for github and gitlab"
        )
    for option, given in (("--metrics", metrics), ("--html", page)):
        if given and (what != "drift" or of_a_forge):
            raise InvalidInput(
                f"{option} for {what} with --as {kind}",
                expected="drift by systemd or cron",
                do=f"leave out {option}",
            )
    if what == "accept" and of_a_forge:
        raise InvalidInput(
            f"accept with --as {kind}",
            expected="systemd or cron of one controller, whose history has the nodes' last tests",
            do="leave out --as",
        )


def _job(what: str, lock_path: Path, new_path: Path | None, notify: str | None, share: str) -> Job:
    """Return the job, after the lock that it needs was read successfully.

    Args:
        what: `drift`, `modules`, `accept`, `doctor` or `upgrade`.
        new_path: the lock to move to, for an upgrade.
        notify: command that gets the report.
        share: percentage of the fleet that is tested in a week.

    Raises:
        InvalidInput: `new_path` is missing, the share is no percentage, or a lock is not valid.
        Refused: tests are scheduled for a fleet without a drain hook.
    """
    from gpuprov.model.lock import read_lock
    from gpuprov.upgrade import schedule
    from gpuprov.upgrade.repair.share import refuse_unhooked, valid_share

    here = lock_path.absolute().parent
    if what != "upgrade":
        read_lock(lock_path)
        if what == "accept":
            valid_share(share)
            refuse_unhooked(read_lock(lock_path))
            return schedule.accept(here, share, notify)
        jobs = {"drift": schedule.drift, "modules": schedule.modules, "doctor": schedule.doctor}
        return jobs[what](here, notify)
    if new_path is None:
        raise InvalidInput("--to is missing", do="give --to NEW.lock.yml")
    rollout = read_lock(new_path).rollout
    return schedule.upgrade(here, new_path.absolute(), rollout.window if rollout else None, notify)


def _as_user(user: str, *needed: Path) -> None:
    """Print the commands that create the job's user; warn of needed paths that this user cannot reach."""
    from gpuprov.upgrade.schedule import HOME

    options.note(f"useradd --system --home-dir {HOME} --shell /usr/sbin/nologin {user}")
    options.note(f"install -D -m 600 -o {user} KEY {HOME}/.ssh/id_ed25519")
    options.note(f"install -m 644 ~/.ssh/known_hosts {HOME}/.ssh/known_hosts")
    for path in needed:
        if wall := closed(path, user):
            options.warn(
                f"{user} cannot read {path}: other users have no access to {wall};"
                " move gpuprov and the fleet below /opt or /srv, or give --user root"
            )


def _as_root(*needed: Path) -> None:
    """Warn of needed paths that another user can replace: the job runs them, or what they state, as root."""
    from gpuprov.apply.image import is_of_others
    from gpuprov.files.ways import above

    for path in needed:
        if theirs := next(filter(is_of_others, above(path)), None):
            options.warn(
                f"root runs {path}, and other users can replace it, by {theirs};"
                " move gpuprov and the fleet below /opt or /srv, as root"
            )


def closed(path: Path, user: str) -> Path | None:
    """Return the first part of a path that a user cannot enter, or None; groups' rights are ignored, and an
    unknown user has those of others. OSError if a part does not exist.
    """
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        uid = None
    for part in (*reversed(path.parents), path):
        found = part.stat()
        if found.st_uid != uid and not found.st_mode & stat.S_IXOTH:
            return part
    return None
