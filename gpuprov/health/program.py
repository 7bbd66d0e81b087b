"""The program for a node: one run, or one every `--interval` seconds until `--seconds` have passed.

    gpuprov-health [--config FILE]                 one run, as the timer starts it
    gpuprov-health --print                         one run, and its verdict on standard output
    gpuprov-health --interval 60 --seconds 600     by hand, for ten minutes
    gpuprov-health --failed REASON                 write that no run could judge
    gpuprov-health --folder DIR                    write below DIR, not below /run/gpuprov
    gpuprov-health --reserve                       create missing files with blanks: later runs need no space
    gpuprov-health --forget                        remove verdict, metrics and memory

Exit codes: 0 if a verdict was written; 1 if it could not be written; 2 for a wrong argument. Metrics that
cannot be written are only reported.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuprov.doctor.fault import CLASSES
from gpuprov.files import mutex
from gpuprov.health import command, machine
from gpuprov.health.memory import DRAINING, Memory
from gpuprov.health.output import line, remove, save, save_all
from gpuprov.health.verdict import Circumstances, conclude, unknown

NAME = "gpuprov-health"
"""Name of this program's process."""
CONFIG = "/etc/gpuprov/health.json"
FOLDER = "/run/gpuprov"
STATE = "health.state"
STATE_BYTES = 16384
"""Size of the memory between runs, filled up with blanks: a fault needs no space that a full /run lacks."""
FILES = {"health": 0o644, "health.json": 0o644, "health.command": 0o600, STATE: 0o600}
"""File in the folder → its mode."""
LONGEST_CHANGE_S = 4 * 3600.0
"""Longest time for which changes of the node are an excuse: a package manager that waits for an answer, or
one that is started again and again, would hide faults for ever.
"""
LOCK, LOCK_S = "locks/health", 1.0
"""The lock of a run, in the folder, and the seconds for which another run waits for it."""


@dataclass(frozen=True)
class Config:
    """The role's settings.

    Attributes:
        interval: seconds between two runs.
        grace: seconds after boot in which faults do not count.
        hold: seconds without a fault after which it is gone.
        textfile: path of the metrics, None without them.
        rules: rule → class of its faults, or `off`.
        command: program that is started after a change of the verdict, None without one.
    """

    interval: float = 60.0
    grace: float = 300.0
    hold: float = 600.0
    textfile: str | None = None
    rules: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None


class Wrong(Exception):
    """A configuration that cannot be used; its text says why."""


def read_config(path: str) -> Config:
    """Return the configuration in a file; defaults without the file.

    Raises:
        Wrong: it is not valid.
    """
    try:
        stated = json.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        return Config()
    except (OSError, ValueError) as error:
        raise Wrong(f"{path} cannot be read: {error}") from None
    try:
        config = Config(**stated)
        numbers = [float(each) for each in (config.interval, config.grace, config.hold)]
    except (TypeError, ValueError) as error:
        raise Wrong(f"{path} is not valid: {error}; expected what the role health writes") from None
    if numbers[0] < 1 or min(numbers) < 0:
        raise Wrong(f"{path}: interval is {config.interval}, expected 1 or more seconds")
    return config


def check_rules(config: Config, known: frozenset[str]) -> str:
    """Return the first stated rule or class that does not exist, with what was expected; "" if all do."""
    for rule, stated in config.rules.items():
        if rule not in known:
            return f"rules names {rule!r}, expected a rule that `gpuprov doctor` knows"
        if stated not in (*CLASSES, "off"):
            return f"rules states {stated!r} for {rule}, expected {', '.join(CLASSES)} or off"
    return ""


def run(config: Config, folder: str, digest: str = "") -> dict[str, Any]:
    """Look at this machine once, and store the memory in `folder`; return the document.

    After a failure it is that of `unknown`; also if the memory cannot be written, except with a verdict that
    drains the node. Metrics in the file of an earlier setting are removed.

    Args:
        digest: of the program's file, for the document.
    """
    began, now, wall = time.monotonic(), machine.uptime(), time.time()
    boot = machine.boot_id()
    memory, kept = _remembered(f"{folder}/{STATE}", boot)
    if kept.get("textfile") != config.textfile:
        forget(kept.get("textfile"))
        kept["textfile"] = config.textfile
    around = Circumstances(
        now,
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall)),
        boot,
        config.interval,
        config.hold,
        program=digest,
    )
    try:
        document = _judged(config, memory, kept, around, wall)
    except Exception as error:  # noqa: BLE001 - after any failure the old verdict must not stay
        document = unknown(f"the run failed: {type(error).__name__}: {error}"[:300], around, memory)
    try:
        kept_text = json.dumps({"boot": boot, "memory": memory.as_dict(), "kept": kept})
        save(f"{folder}/{STATE}", kept_text.ljust(STATE_BYTES), FILES[STATE], in_place=True)
    except OSError as error:  # then no fault is ever confirmed
        if document["verdict"] not in DRAINING:
            document = unknown(f"the memory between runs cannot be kept: {error.strerror}", around, Memory())
    return {**document, "seconds": round(time.monotonic() - began, 3)}


def _judged(
    config: Config, memory: Memory, kept: dict[str, Any], around: Circumstances, wall: float
) -> dict[str, Any]:
    """Read the machine, judge it, add the faults to `memory`, and return the document of the run.

    Rules that the program does not know, and an unreliable clock, are reasons in it. `kept` is updated, too.
    """
    from gpuprov.health import look

    look.own_catalog()
    reasons = []
    if wrong := config.rules and check_rules(config, look.known_rules()):
        reasons.append(wrong)
    if clock := machine.clock_reason(wall, around.now, memory.wall):
        reasons.append(clock)
    memory.wall = wall - around.now
    paused = pause(config, memory, around.now, machine.changing())
    facts = look.read_facts(kept, around.now, machine.leftovers("nvidia-smi"), machine.leftovers(NAME))
    found = look.judge(look.examine(facts), kept, config.rules)
    memory.take(
        found.sights,
        now=around.now,
        interval=config.interval,
        hold=config.hold,
        unknown=found.unjudged,
        partly=found.partly,
        paused=bool(paused),
    )
    return conclude(
        memory, replace(around, reasons=[*reasons, *found.reasons], paused=paused, unjudged=found.unjudged)
    )


def pause(config: Config, memory: Memory, now: float, changing: str) -> str:
    """Return why faults do not count at the moment, "" if they do: in the time after boot, or during a
    change, up to `LONGEST_CHANGE_S`; add the time of a change to the memory.
    """
    passed = max(0.0, now - memory.ran) if memory.ran is not None else 0.0
    memory.busy_s = max(0.0, memory.busy_s + (passed if changing else -passed))
    if now < config.grace:
        return f"{now:.0f} s after boot, of {config.grace:.0f} s in which services start"
    return changing if memory.busy_s < LONGEST_CHANGE_S else ""


def forget(*paths: str | None) -> None:
    """Remove files; missing ones, and those that cannot be removed, are ignored."""
    for path in filter(None, paths):
        with contextlib.suppress(OSError):
            remove(path)


def reserve(folder: str) -> None:
    """Create those of `FILES` that are missing, with blanks: a fault then needs no space in the folder.

    A unit runs it at boot, before a user can fill /run. Readers take a blank verdict for none. A run that has
    the lock writes them itself.

    Raises:
        OSError: one cannot be written.
    """
    with contextlib.suppress(mutex.Locked), mutex.held(f"{folder}/{LOCK}", LOCK_S):
        for name, mode in FILES.items():
            if not os.path.lexists(f"{folder}/{name}"):
                save(f"{folder}/{name}", "\n".rjust(STATE_BYTES if name == STATE else 1), mode)


def _remembered(path: str, boot: str) -> tuple[Memory, dict[str, Any]]:
    """Return the memory of this boot and the values of earlier runs; empty ones after another boot, or
    without a valid file.
    """
    try:
        value = json.loads(Path(path).read_text("utf-8"))
        if value["boot"] == boot and boot:
            return Memory.from_dict(value["memory"]), dict(value["kept"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return Memory(), {}


def main(argv: list[str] | None = None, program: str = "") -> int:
    """Run the program: once, or at each interval for `--seconds`; return its exit code, 1 if a file could not
    be written.

    With `--forget` remove its files instead. An invalid configuration gives documents with that failure.

    Args:
        program: path of the program's file.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default=CONFIG, metavar="FILE")
    parser.add_argument("--folder", default=FOLDER, metavar="DIR")
    parser.add_argument("--interval", type=float, metavar="SECONDS")
    parser.add_argument("--seconds", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--print", action="store_true", dest="prints")
    parser.add_argument("--failed", metavar="REASON")
    parser.add_argument("--reserve", action="store_true")
    parser.add_argument("--forget", action="store_true")
    wanted = parser.parse_args(argv)
    os.umask(0o022)
    digest = machine.program_digest(Path(program)) if program else ""
    try:
        config = read_config(wanted.config)
    except Wrong as error:
        config = Config()
        wanted.failed = wanted.failed or str(error)
    if wanted.interval:
        config = replace(config, interval=wanted.interval)
    if wanted.forget:
        forget(config.textfile, *(f"{wanted.folder}/{name}" for name in FILES))
        return 0
    mutex.own_folder(wanted.folder, 0o755)
    if wanted.reserve:
        reserve(wanted.folder)
        return 0
    until = time.monotonic() + wanted.seconds
    code = 0
    while True:
        begun = time.monotonic()
        code = max(code, _once(config, wanted, digest))
        left = config.interval - (time.monotonic() - begun)
        if time.monotonic() + left >= until:
            return code
        time.sleep(max(0.0, left))


def _once(config: Config, wanted: argparse.Namespace, digest: str) -> int:
    """Do one run under the lock, write its files and start the site's program; return 1 if a file of the
    verdict cannot be written, else 0. While another run holds the lock, do nothing and return 0.
    """
    try:
        with mutex.held(f"{wanted.folder}/{LOCK}", LOCK_S):
            if wanted.failed:
                document = _failed(config, wanted.folder, wanted.failed, digest)
            else:
                document = run(config, wanted.folder, digest)
            failed = save_all(document, wanted.folder, config.textfile)
    except mutex.Locked:
        print("another run has not ended; this one does nothing", file=sys.stderr)
        return 0
    for path, reason in failed.items():
        print(f"cannot be written: {path}: {reason}", file=sys.stderr)
    if wanted.prints or wanted.seconds:
        print(f"{document['at']} {document['seconds']} s: {line(document)}", end="", flush=True)
    command.run_command(config.command, document, f"{wanted.folder}/health.command")
    return 1 if failed.keys() - {config.textfile} else 0  # the folder of the metrics is another user's


def _failed(config: Config, folder: str, reason: str, digest: str) -> dict[str, Any]:
    """Return the document in place of a run that could not judge, from the memory of the runs before."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    boot = machine.boot_id()
    around = Circumstances(machine.uptime(), at, boot, config.interval, config.hold, program=digest)
    return unknown(reason, around, _remembered(f"{folder}/{STATE}", boot)[0])


def start(program: str, after: Callable[[int], None] = os._exit) -> None:
    """Run the program and leave at once, without waiting for a thread in uninterruptible sleep.

    An OSError is printed, and the exit code is 1.

    Args:
        after: ends the process with an exit code.
    """
    try:
        code = main(program=program)
    except OSError as error:
        print(f"gpuprov-health: {error}", file=sys.stderr)
        code = 1
    except SystemExit as stopped:
        code = int(stopped.code or 0) if isinstance(stopped.code, int) or stopped.code is None else 1
    sys.stdout.flush()
    sys.stderr.flush()
    after(code)


__all__ = ["Config", "main", "run", "start"]
