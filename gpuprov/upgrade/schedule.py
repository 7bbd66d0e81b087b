"""Scheduled runs of gpuprov: systemd units, a crontab, a CI job. Text only; nothing is installed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuprov.errors import InvalidInput
from gpuprov.inventory.wheel import Wheel, wheel_of_job
from gpuprov.model.rollout import DAYS, Window
from gpuprov.untrusted import path_line
from gpuprov.upgrade.forges import github, gitlab, in_a_forge

Kind = Literal["systemd", "cron", "github", "gitlab"]
NIGHTLY = "03:17"
"""Not on the full hour, when most scheduled jobs start."""
TESTS, LOOK = "04:17", "05:17"
"""After the nightly drift; an examination follows the tests, whose errors it then finds."""
BEFORE = "02:17"
"""Before the nightly drift, which would report missing modules."""


USER = "gpuprov"
HOME = "/var/lib/gpuprov-controller"
"""Home directory of `USER`, with runs, history, and its key in `.ssh`. Nodes keep programs of root in
/var/lib/gpuprov, also if the controller is a node."""


@dataclass(frozen=True)
class Job:
    """A scheduled run.

    Args:
        name: `drift`, `modules`, `accept`, `doctor` or `upgrade`.
        words: gpuprov's arguments.
        folder: the folder of fleet.yml and its lock.
        days: days of the week; all of them means every day.
        at: HH:MM in `zone`.
        zone: a time zone, `UTC` or such as `Europe/Berlin`.
        notify: a command that gets the output on standard input unless the exit code is 0; the exit code is
            in GPUPROV_EXIT.
        user: the user that runs it on this machine: a dedicated one, which only has to read the folder.
        metrics: the file for node_exporter's textfile collector, written after each drift.
        page: the file for an HTML page, written after each drift.
        wheel: the wheel that a CI job installs.
    """

    name: str
    words: tuple[str, ...]
    folder: Path
    days: tuple[str, ...] = DAYS
    at: str = NIGHTLY
    zone: str = "UTC"
    notify: str | None = None
    user: str = USER
    metrics: Path | None = None
    page: Path | None = None
    wheel: Wheel | None = None

    @property
    def command_words(self) -> tuple[str, ...]:
        """gpuprov's arguments, including those from other attributes."""
        files = {"--prometheus": self.metrics, "--html": self.page}
        return (*self.words, *(word for name, path in files.items() if path for word in (name, str(path))))


def drift(folder: Path, notify: str | None) -> Job:
    """Return the job that checks the whole fleet for drift every night."""
    return Job("drift", ("drift",), folder, notify=notify)


def modules(folder: Path, notify: str | None) -> Job:
    """Return the job that adds missing modules for updated kernels, before nodes boot these kernels."""
    words = ("apply", "--role", "nvidia_driver", "--yes")
    return Job("modules", words, folder, at=BEFORE, notify=notify)


def accept(folder: Path, share: str, notify: str | None) -> Job:
    """Return the job that tests a part of the fleet under load every night, so that a week has the share."""
    return Job("accept", ("accept", "--share", share), folder, at=TESTS, notify=notify)


def doctor(folder: Path, notify: str | None) -> Job:
    """Return the job that examines the whole fleet every night."""
    return Job("doctor", ("doctor", "--all"), folder, at=LOOK, notify=notify)


def upgrade(folder: Path, to: Path, window: Window | None, notify: str | None) -> Job:
    """Return the job that upgrades when the fleet's window opens. If the gate is shut then, no node moves.

    Raises:
        InvalidInput: the fleet states no window.
    """
    if window is None:
        raise InvalidInput("the lock has no window", do="state rollout.window in fleet.yml, and lock again")
    words = ("upgrade", "--to", str(to), "--yes")
    return Job("upgrade", words, folder, tuple(window.days), window.start, window.zone, notify)


def files(job: Job, kind: Kind, program: str) -> dict[str, str]:
    """Return the files that schedule a job, file name → text. CI jobs write no `metrics` and no `page`.

    Args:
        program: the command `gpuprov`, with its absolute path for timers and cron.

    Raises:
        InvalidInput: `kind` is `github`, and the job's time zone is not UTC; a CI job has no wheel; or a path
            has control characters.
    """
    for word in (str(job.folder), *job.command_words):
        path_line(word)
    ways = {"systemd": _systemd, "cron": _cron, "github": _github, "gitlab": _gitlab}
    return ways[kind](job, program)


def _command(job: Job, program: str, *, quiet: bool = False) -> str:
    """Return a line of sh: if gpuprov fails, `notify` gets its output; the exit code is gpuprov's.

    Args:
        quiet: print nothing if gpuprov exits with 0.
    """
    return _with_comment(job, shlex.join([program, *job.command_words]), quiet=quiet)


def _with_comment(job: Job, line: str, *, quiet: bool = False) -> str:
    """Return a line of sh that gives the output of a failing line to `notify`; without `notify` the line.

    Args:
        quiet: without `notify`, print the output only if the line fails.
    """
    if job.notify is None and not quiet:
        return line
    result = 'printf "%s\\n" "$said"' + (f" | GPUPROV_EXIT=$code {job.notify}" if job.notify else "")
    return f"said=$({line} 2>&1); code=$?; [ $code = 0 ] || {result}; exit $code"


def _systemd(job: Job, program: str) -> dict[str, str]:
    """Return file name → text of a service and its timer; only drift is run later if its time was missed, and
    may end with 3.
    """
    days = "" if len(job.days) == len(DAYS) else ",".join(day.capitalize() for day in job.days) + " "
    # systemd interprets % and $ in ExecStart; doubled they reach the shell.
    command = shlex.join(["/bin/sh", "-c", _command(job, program)]).replace("%", "%%").replace("$", "$$")
    return {
        f"gpuprov-{job.name}.service": (
            f"[Unit]\nDescription=gpuprov {job.name}\n"
            "Wants=network-online.target\nAfter=network-online.target\n\n"
            f"[Service]\nType=oneshot\n{_who(job)}WorkingDirectory={_path(job.folder)}\nExecStart={command}\n"
            "# Drift (3) is a finding, not a failure of this unit.\n"
            f"SuccessExitStatus={'3' if job.name == 'drift' else '0'}\n"
        ),
        f"gpuprov-{job.name}.timer": (
            f"[Unit]\nDescription=When gpuprov {job.name} runs\n\n"
            f"[Timer]\nOnCalendar={days}*-*-* {job.at}:00 {job.zone}\n"
            f"Persistent={'true' if job.name == 'drift' else 'false'}\n\n"
            "[Install]\nWantedBy=timers.target\n"
        ),
    }


def _path(folder: Path) -> str:
    """Return a folder for a unit, in which `%` begins a specifier."""
    return str(folder).replace("%", "%%")


def _who(job: Job) -> str:
    """Return the settings of a service for its user and its writable folders; empty for root."""
    if job.user == "root":
        return ""
    folders = dict.fromkeys(path.parent for path in (job.metrics, job.page) if path)
    writes = "".join(f"ReadWritePaths=-{_path(folder)}\n" for folder in folders)
    # NoNewPrivileges= prevents sudo: a host with the address `local` needs --user root.
    return (
        f"User={job.user}\nStateDirectory={HOME.rpartition('/')[2]}\nStateDirectoryMode=0700\n"
        f"Environment=HOME={HOME} XDG_STATE_HOME={HOME}/state\n"
        f"NoNewPrivileges=yes\nPrivateTmp=yes\nProtectSystem=strict\n{writes}"
    )


def _cron(job: Job, program: str) -> dict[str, str]:
    """Return file name → text of a crontab; cron mails each output, so nothing if nothing differs."""
    hour, minute = job.at.split(":")
    days = "*" if len(job.days) == len(DAYS) else ",".join(job.days)
    # In a crontab % ends the command.
    command = f"cd {shlex.quote(str(job.folder))} && {_command(job, program, quiet=True)}".replace("%", "\\%")
    return {
        f"gpuprov-{job.name}.cron": f"CRON_TZ={job.zone}\n{int(minute)} {int(hour)} * * {days} {command}\n"
    }


def _github(job: Job, program: str) -> dict[str, str]:
    """Return file name → text of a workflow for a runner that reaches the nodes; GitHub's cron is in UTC.

    Raises:
        InvalidInput: the job's time zone is not UTC.
    """
    hour, minute = _in_utc(job)
    days = "*" if len(job.days) == len(DAYS) else ",".join(day.upper() for day in job.days)
    command = _with_comment(job, in_a_forge(program, job.words))
    cron = f"{int(minute)} {int(hour)} * * {days}"
    return {f"gpuprov-{job.name}.yml": github(job.name, command, cron, _wheel(job))}


def _gitlab(job: Job, program: str) -> dict[str, str]:
    """Return file name → text of a job without its time, which a pipeline schedule of the project states;
    raises as `_wheel`.
    """
    command = _with_comment(job, in_a_forge(program, job.words))
    return {f"gpuprov-{job.name}.gitlab-ci.yml": gitlab(job.name, command, _wheel(job))}


def _wheel(job: Job) -> Wheel:
    """Return the wheel that a CI job installs; raises as `wheel_of_job` if the job states none."""
    return job.wheel or wheel_of_job(None, job.folder)


def _in_utc(job: Job) -> Sequence[str]:
    """Return hour and minute of a job.

    Raises:
        InvalidInput: its time zone is not UTC.
    """
    if job.zone != "UTC":
        raise InvalidInput(
            f"the window is in {job.zone}",
            expected="UTC, the only time zone of CI schedules",
            do="state it in UTC",
        )
    return job.at.split(":")
