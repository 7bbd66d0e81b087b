"""A reboot of the machine that gpuprov itself runs on: a unit of systemd goes on with the run afterwards.

The unit calls gpuprov once more with words that lead to the same run. It is on the disk before the machine
goes down, and is removed by the run that it has started, however that ends. If the machine goes down again
before that end, the next boot calls once more.
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
from gpuprov.apply.deadman import LIMITS, as_root, said
from gpuprov.errors import GpuprovError, NodeFailed, Refused
from gpuprov.model.connection import LOCAL, Connection
from gpuprov.probe.here import KEPT
from gpuprov.ssh.transport import Target, open_session

UNIT = "gpuprov-resume.service"
PATH = f"/etc/systemd/system/{UNIT}"
ENVIRONMENT = "/etc/systemd/system/gpuprov-resume.env"
"""Variables of the run, such as a proxy's address with its password. Root alone reads this file; every
user of the machine may ask systemd for what a unit says itself."""
WANTED = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
BEFORE = "GPUPROV_BOOT_BEFORE"
"""The variable that tells a run which boot its machine was in when it went down."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CLEARED = ("/tmp", "/run", "/var/run", "/dev/shm")  # noqa: S108 - what a boot may clear
DOWN_S = 300.0
TEXT = """\
[Unit]
Description=gpuprov goes on after the reboot that it asked for ({run})
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
    """This machine is not rebooted, because the run could not go on afterwards; it is as before."""


@dataclass
class Afterwards:
    """How a run goes on after a reboot of this machine.

    Attributes:
        words: gpuprov's command line that leads to the same run.
        before: the boot that the machine was in when the run asked for its reboot; None if it did not.
        leaving: called before the machine goes down, with how much was changed on each node.
    """

    words: Sequence[str]
    before: str | None = None
    leaving: Callable[[Mapping[str, int]], None] = lambda changed: None

    def returned(self) -> bool:
        """Whether the reboot that the run asked for lies behind it; says so once."""
        before, self.before = self.before, None
        return before is not None and before != boot_id()


def boot_id() -> str:
    """The kernel's id of this boot."""
    return BOOT_ID.read_text().strip()


def boot_before() -> str | None:
    """The boot before the one that the unit was started in; None where the unit has not started us."""
    return os.environ.get(BEFORE)


def go_down(
    run: str, way: Target, afterwards: Afterwards, changed: Mapping[str, int], *, password: str | None
) -> None:
    """Reboot this machine; the process ends with it, as one that was killed.

    Args:
        run: its id.
        way: to this machine.
        changed: node → how many tasks changed it so far.

    Raises:
        Cannot: the run could not go on afterwards; nothing was changed.
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
                f"{UNIT}, which continues the run after the boot, cannot be set up: {said(output)}",
                do="reboot it yourself, then apply again",
            )
        afterwards.leaving(changed)
        os.sync()
        output = as_root(session, "systemctl reboot", password)
    if output.code == 0:
        time.sleep(DOWN_S)  # systemd ends us
    remove(way)
    raise NodeFailed(
        f"the reboot of this machine did not start: {said(output)}", do="see `systemctl list-jobs`"
    )


def refuse_what_is_lost(password: str | None) -> None:
    """Refuse where no one could call gpuprov after the boot.

    Raises:
        Cannot: sudo asks for a password, or gpuprov is in a folder that a boot clears.
    """
    if password is not None:
        raise Cannot(
            "sudo asks for a password, which cannot be typed after the boot",
            do="run gpuprov as root, or reboot it yourself, then apply again",
        )
    for place in (sys.executable, str(Path(gpuprov.__file__).parent), str(Path.cwd())):
        cleared = next((each for each in CLEARED if Path(place).is_relative_to(each)), None)
        if cleared:
            raise Cannot(
                f"{place} may not survive the boot, which may clear {cleared}",
                do="move gpuprov and the fleet elsewhere, or reboot it yourself, then apply again",
            )


def unit(run: str, user: str, words: Sequence[str]) -> str:
    """The unit's text."""
    return TEXT.format(
        run=run,
        user=user,
        folder=str(Path.cwd()).replace("%", "%%"),
        environment=ENVIRONMENT,
        command=" ".join(
            _quoted(word).replace("$", "$$") for word in [sys.executable, "-P", "-m", "gpuprov", *words]
        ),
    )


def environment() -> str:
    """Return the variables of the unit as systemd.exec(5) reads them from a file."""
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
    """Return one word as systemd.syntax(7) reads it; in a command `$` is doubled too."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{plain}"'


def remove(way: Target) -> None:
    """Take the unit away.

    Raises:
        GpuprovError: this machine does not do it.
    """
    with open_session(way, LIMITS) as session:
        output = as_root(session, f"rm -f {WANTED} {PATH} {ENVIRONMENT} && systemctl daemon-reload", None)
    if output.code:
        raise NodeFailed(f"{UNIT} cannot be removed: {said(output)}", do=f"rm {WANTED} {PATH} {ENVIRONMENT}")


@contextmanager
def gone_when_done(narrate: Callable[[str], None]) -> Iterator[None]:
    """Around what the unit has started: it is removed at the end. A boot in between leaves it there."""
    try:
        yield
    finally:
        if boot_before() is not None:
            try:
                remove(Target("this machine", LOCAL, Connection()))
            except GpuprovError as error:
                narrate(str(error))
