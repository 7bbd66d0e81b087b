"""Expected duration of a plan: from the tasks of earlier applies, or from rough values for a first one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gpuprov.apply.plan import RUNNABLE, NodePlan
from gpuprov.files.runs import run_folders
from gpuprov.model.lock import Lock
from gpuprov.untrusted.parsing import read_json

RUNS = 10
"""Number of the newest runs of apply that are read."""
EVENTS_BYTES, LINE_BYTES = 8 << 20, 1 << 20
"""Maximum size of a file of events and of one event; larger ones are left out."""
ALL_BYTES = 16 << 20
"""Maximum size of all files: a worker sends many of them, and 16 MiB of short lines take about 10 s."""
LONGEST_S = 86_400.0
REBOOT = "reboot"
ROLE_S, COMPILE_S, REBOOT_S, VERIFY_S = 6.0, 150.0, 180.0, 20.0
"""Rough seconds of a role, of a module that DKMS compiles, of a server's reboot, and of a verification."""
BYTES_PER_S = 20e6
"""Rough rate at which packages are downloaded and installed."""
DRIVER = "nvidia_driver"


@dataclass(frozen=True)
class Pace:
    """Expected duration of a plan and the size of its packages.

    Attributes:
        seconds: for all nodes, which change at the same time and are rebooted in batches.
        known: whether all of it is from earlier applies.
        download: bytes of all nodes' packages; None if the lock does not state sizes.
    """

    seconds: float
    known: bool
    download: int | None


def pace(lock: Lock, plans: Sequence[NodePlan]) -> Pace:
    """Return the expected duration of plans, and the size of the packages that they install, None if one is
    unknown.

    The durations are those of the last `RUNS` runs of apply; roles without one have a fixed estimate, and the
    result is then not `known`.
    """
    busy = [plan for plan in plans if not plan.empty]
    sizes = [_download(lock, plan) for plan in busy]
    download = None if None in sizes else sum(filter(None, sizes))
    earlier = seconds_by_role(run_folders("apply")[-RUNS:])
    total, known = VERIFY_S, True
    for role in RUNNABLE:
        running = [plan for plan in busy if role in plan.roles]
        if not running:
            continue
        installs = any(_installs(plan, role) for plan in running)
        if role in earlier:
            # A role without packages to install is quick; the slowest run was one with packages.
            total += max(earlier[role]) if installs else median(earlier[role])
        else:
            known = False
            total += ROLE_S + (_rough(lock, running, role) if installs else 0.0)
    for group in lock.groups.values():
        rebooting = [plan for plan in busy if plan.reboot and plan.name in group.hosts]
        if rebooting:
            known &= REBOOT in earlier
            batches = -(-len(rebooting) // group.reboot.batch)
            total += batches * (median(earlier[REBOOT]) if REBOOT in earlier else REBOOT_S)
    return Pace(total, known, download)


def _installs(plan: NodePlan, role: str) -> bool:
    """Return whether a role installs packages on a node."""
    return any(each.role == role and each.check.endswith(".packages") for each in plan.because)


def _rough(lock: Lock, running: Iterable[NodePlan], role: str) -> float:
    """Return rough seconds on the slowest node for the packages of a role: their size, and a module that DKMS
    compiles.
    """
    hosts, slowest = lock.hosts(), 0.0
    for plan in running:
        own = [each for each in plan.because if each.role == role]
        seconds = (_download(lock, plan, [each.check for each in own]) or 0) / BYTES_PER_S
        if role == DRIVER and hosts[plan.name].components.driver.compiled:
            seconds += COMPILE_S
        slowest = max(slowest, seconds)
    return slowest


def _download(lock: Lock, plan: NodePlan, checks: Sequence[str] | None = None) -> int | None:
    """Return the bytes of the packages that a plan installs on its node; None if the lock does not state all.

    A component with only some differing packages counts with their share by number.

    Args:
        checks: only the differences of these checks.
    """
    missing = {
        name
        for each in plan.because
        if each.check.endswith(".packages") and (checks is None or each.check in checks)
        if isinstance(each.expected, dict) and isinstance(each.actual, dict)
        for name, version in each.expected.items()
        if each.actual.get(name) != version
    }
    total = 0.0
    for _, component in lock.group_of(plan.name).components.each():
        share = len(missing & set(component.closure)) / max(len(component.closure), 1)
        if share and component.download is None:
            return None
        total += share * (component.download or 0)
    return round(total)


def seconds_by_role(folders: Iterable[Path]) -> dict[str, list[float]]:
    """Return role → its seconds in each run that has it; also of `reboot`.

    A task counts with the seconds of its slowest node. Tasks of a role that is only a part of others count
    for the role before them.

    The newest runs are read first; one that exceeds what is left of `ALL_BYTES` is left out.

    Args:
        folders: the folders of runs, oldest first.
    """
    found: dict[str, list[float]] = defaultdict(list)
    room = ALL_BYTES
    for folder in reversed(list(folders)):
        files = [
            (path, playbook)
            for name, playbook in (("site-events.jsonl", ""), ("reboot-events.jsonl", REBOOT))
            for path in sorted(folder.rglob(name))
        ]
        size = sum(_size(path) for path, _ in files)
        if size > room:
            continue
        room -= size
        own: dict[str, float] = defaultdict(float)
        for path, playbook in files:
            for role, seconds in _tasks(path, playbook):
                own[role] += seconds
        for role, seconds in own.items():
            found[role].append(seconds)
    return dict(found)


def _size(path: Path) -> int:
    """Return the size of a file of events in bytes; 0 of one that `_tasks` does not read."""
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    return size if size <= EVENTS_BYTES else 0


def _tasks(path: Path, role: str) -> Iterator[tuple[str, float]]:
    """Yield role and seconds of the slowest task of each play in a file of events; none if it is larger than
    `EVENTS_BYTES` or cannot be read.

    Lines that are not events are left out.

    Args:
        role: the role that tasks without a role of a plan count for; without one they are left out.
    """
    slowest = 0.0
    try:
        if path.stat().st_size > EVENTS_BYTES:
            return
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            event = read_json(line, LINE_BYTES)
        except ValueError:
            continue
        if not isinstance(event, dict):
            continue
        seconds = event.get("seconds")
        if event.get("event") == "task" and isinstance(seconds, int | float) and 0 <= seconds <= LONGEST_S:
            slowest = max(slowest, float(seconds))
        elif event.get("event") in ("start", "stats"):
            if role:
                yield role, slowest
            slowest = 0.0
            role = event["role"] if event.get("role") in RUNNABLE else role
