"""Reboot of the machine that gpuprov itself runs on: a systemd unit continues the run afterwards.

The unit starts gpuprov with a command line that leads to the same run. It is on the disk before the machine
goes down. The run that it starts removes it at the end, also after a failure. If the machine goes down again
before that end, the unit starts the run once more at the next boot.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gpuprov
from gpuprov.access.deadman import LIMITS, as_root, last_line
from gpuprov.errors import GpuprovError, NodeFailed, Refused
from gpuprov.files.ways import ways
from gpuprov.model.connection import LOCAL, Connection
from gpuprov.probe.here import KEPT
from gpuprov.ssh.transport import Target, open_session
from gpuprov.untrusted import path_line

UNIT = "gpuprov-resume.service"
PATH = f"/etc/systemd/system/{UNIT}"
ENVIRONMENT = "/etc/systemd/system/gpuprov-resume.env"
"""Variables of the run, such as a proxy's address with its password. Only root can read this file; the
text of a unit is available to every user of the machine through systemd."""
WANTED = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
BEFORE = "GPUPROV_BOOT_BEFORE"
"""Name of the variable that passes the boot id from before the reboot to the run."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CLEARED = ("/tmp", "/run", "/var/run", "/dev/shm")  # noqa: S108 - what a boot may clear
DOWN_S = 300.0
TEXT = """\
[Unit]
Description=Continuation of a gpuprov run after its reboot ({run})
After=multi-user.target network-online.target
Wants=network-online.target

[Service]
Type=exec
User={user}
WorkingDirectory={folder}
EnvironmentFile={environment}
ExecStart={command}
StandardInput=null

[Install]
WantedBy=multi-user.target
"""


class Cannot(Refused):
    """Refusal to reboot this machine, because the run could not continue afterwards; nothing is changed."""


@dataclass
class Afterwards:
    """Continuation of a run after a reboot of this machine.

    Attributes:
        words: arguments of gpuprov that lead to the same run.
        before: id of the boot during which the run requested the reboot; None if it requested none.
        leaving: called before the machine goes down, with the number of changes on each node.
    """

    words: Sequence[str]
    before: str | None = None
    leaving: Callable[[Mapping[str, int]], None] = lambda changed: None

    def returned(self) -> bool:
        """Return whether the requested reboot has taken place; later calls return False."""
        before, self.before = self.before, None
        return before is not None and before != boot_id()


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return BOOT_ID.read_text().strip()


def boot_before() -> str | None:
    """Return the boot id from before the reboot; None if the unit did not start this process."""
    return os.environ.get(BEFORE)


def go_down(
    run: str, way: Target, afterwards: Afterwards, changed: Mapping[str, int], *, password: str | None
) -> None:
    """Install the unit that continues the run, call `leaving`, and reboot this machine; the shutdown kills
    this process.

    Args:
        run: the run's id.
        way: the connection to this machine.
        changed: node → number of tasks that have changed it so far.

    Raises:
        Cannot: the run could not continue afterwards; nothing was changed.
        NodeFailed: the machine does not go down.
    """
    refuse_what_is_lost(password)
    text = unit(run, way.route.user, afterwards.words)
    steps = [
        "systemctl --version >/dev/null",
        "[ -d /run/systemd/system ]",
        f"rm -f {ENVIRONMENT} {PATH}",
        f"(umask 077 && cat >{ENVIRONMENT})",
        f"(umask 022 && printf %s {shlex.quote(text)} >{PATH})",
        "systemctl daemon-reload",
        f"systemctl -q enable {UNIT}",
        f"sync {ENVIRONMENT} {PATH} /etc/systemd/system",
    ]
    with open_session(way, LIMITS) as session:
        output = as_root(session, " && ".join(steps), password, environment().encode())
        if output.code:
            remove(way)
            raise Cannot(
                f"{UNIT}, which continues the run after the boot, cannot be set up: {last_line(output)}",
                do="reboot it yourself, then apply again",
            )
        afterwards.leaving(changed)
        os.sync()
        output = as_root(session, "systemctl reboot", password)
    if output.code == 0:
        time.sleep(DOWN_S)  # systemd ends this process meanwhile
    remove(way)
    raise NodeFailed(
        f"the reboot of this machine did not start: {last_line(output)}", do="see `systemctl list-jobs`"
    )


def cleared_above(place: Path) -> str | None:
    """Return the folder of `CLEARED` that a path is in, also by a link on the way, or None."""
    return next((each for way in ways(place) for each in CLEARED if way.is_relative_to(each)), None)


def refuse_what_is_lost(password: str | None) -> None:
    """Refuse a reboot after which the unit could not start gpuprov.

    Raises:
        Cannot: sudo requires a password, or gpuprov or the working directory is in a folder that a boot may
            clear, also by a link.
    """
    if password is not None:
        raise Cannot(
            "sudo asks for a password, which cannot be typed after the boot",
            do="run gpuprov as root, or reboot it yourself, then apply again",
        )
    for place in (sys.executable, str(Path(gpuprov.__file__).parent), str(Path.cwd())):
        if cleared := cleared_above(Path(place)):
            raise Cannot(
                f"{place} may be deleted at boot, which can clear {cleared}",
                do="move gpuprov and the fleet elsewhere, or reboot it yourself, then apply again",
            )


def unit(run: str, user: str, words: Sequence[str]) -> str:
    """Return the text of the systemd unit: it runs gpuprov with arguments in the current folder as a user."""
    return TEXT.format(
        run=run,
        user=user,
        folder=path_line(Path.cwd()).replace("%", "%%"),
        environment=ENVIRONMENT,
        command=" ".join(
            _quoted(word).replace("$", "$$") for word in [sys.executable, "-P", "-m", "gpuprov", *words]
        ),
    )


def environment() -> str:
    """Return the variables of the unit in the format of an EnvironmentFile, systemd.exec(5).

    These are the variables of this process that gpuprov uses but SSH_CONNECTION, this boot's id, and
    PYTHONPATH if the package is outside `sys.prefix`. Variables with a line break are left out.
    """
    package = Path(gpuprov.__file__).resolve().parents[1]
    kept = [*KEPT, "HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "SUDO_USER", "USER"]
    stated = {name: os.environ[name] for name in kept if name in os.environ and name != "SSH_CONNECTION"}
    if not package.is_relative_to(sys.prefix):
        stated["PYTHONPATH"] = str(package)
    stated[BEFORE] = boot_id()
    escaped = {
        name: re.sub(r'(["\\\\$`])', r"\\\1", value) for name, value in stated.items() if "\n" not in value
    }
    return "".join(f'{name}="{value}"\n' for name, value in escaped.items())


def _quoted(word: str) -> str:
    """Quote an argument by systemd.syntax(7), except `$`, which the caller has to double in a command."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{plain}"'


def remove(way: Target) -> None:
    """Remove the unit and its variables from this machine, to which `way` leads.

    Raises:
        GpuprovError: it cannot be removed.
    """
    with open_session(way, LIMITS) as session:
        output = as_root(session, f"rm -f {WANTED} {PATH} {ENVIRONMENT} && systemctl daemon-reload", None)
    if output.code:
        raise NodeFailed(
            f"{UNIT} cannot be removed: {last_line(output)}", do=f"rm {WANTED} {PATH} {ENVIRONMENT}"
        )


@contextmanager
def gone_when_done(narrate: Callable[[str], None]) -> Iterator[None]:
    """Remove the unit at the end of a run that it started; a reboot in between leaves it installed.

    A run that the unit did not start removes nothing. If the removal fails, the error is narrated, not
    raised.
    """
    try:
        yield
    finally:
        if boot_before() is not None:
            try:
                remove(Target("this machine", LOCAL, Connection()))
            except GpuprovError as error:
                narrate(str(error))
