"""Readings of a machine besides the doctor's facts: clocks, changes in progress, stuck programs."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from gpuprov_locks import conflict

from gpuprov.apply.node import lease
from gpuprov.probe.node.base import names_in, read_or_none

PROC = "/proc"
PACKAGE_LOCKS = ("/var/lib/dpkg/lock", "/var/lib/rpm/.rpm.lock", "/usr/lib/sysimage/rpm/.rpm.lock")
STEPPED_S = 60.0
"""Change of the clock, in seconds, after which ages of the log's lines are not trusted. Drift between two
runs is milliseconds.
"""
SEARCH_S = 4.0
"""Seconds after which the search for processes of earlier runs ends: users can have more processes than can
be looked at in the time of a run.
"""
OLDEST = 1_735_689_600
"""2025-01-01: no machine runs this program before; an earlier clock has lost its time."""


def uptime() -> float:
    """Return seconds since boot, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the kernel's id of this boot, "" if it cannot be read."""
    return (read_or_none(f"{PROC}/sys/kernel/random/boot_id", 64) or "").strip()


def clock_reason(wall: float, now: float, before: float | None) -> str:
    """Return why the clock cannot be trusted: a time before `OLDEST`, or a change of more than `STEPPED_S`;
    "" if it can.

    Args:
        wall: seconds since the epoch.
        now: seconds since boot, at the same time.
        before: the difference of the two at the last run; None at the first.
    """
    if wall < OLDEST:
        return f"the clock says {time.strftime('%Y-%m-%d', time.gmtime(wall))}, and has lost its time"
    step = 0.0 if before is None else (wall - now) - before
    if abs(step) > STEPPED_S:
        return (
            f"the clock was set by {step:+.0f} s since the last run; ages in the kernel's log are not known"
        )
    return ""


def changing() -> str:
    """Return the run of gpuprov or the package manager that is changing this node, "" without one.

    A package manager has a write lock. Users can hold read locks on files that they can open, such as rpm's.
    """
    held = lease.current()
    if held is not None:
        return f"the node is leased to run {str(held['run'])[:80]} of gpuprov"
    for path in PACKAGE_LOCKS:
        found = conflict(path)
        if found and found[0] == fcntl.F_WRLCK:
            return f"process {found[1]} installs packages ({path} is locked)"
    return ""


def leftovers(name: str) -> list[int]:
    """Return the processes of earlier runs that have not ended although they were killed.

    These are other processes of this run's control group with a name (15 characters are compared, as the
    kernel keeps them) whose parent is the first process. One in uninterruptible sleep ends only with its
    system call. The search ends after `SEARCH_S`.
    """
    own, until = read_or_none(f"{PROC}/self/cgroup", 4096), time.monotonic() + SEARCH_S
    found = []
    for pid in filter(str.isdecimal, names_in(PROC)):
        if time.monotonic() > until:
            break
        folder = f"{PROC}/{pid}"
        status = read_or_none(f"{folder}/stat", 1024) or ""
        shown, _, rest = status.partition("(")[2].rpartition(")")
        if shown != name[:15] or rest.split()[1:2] != ["1"] or int(pid) == os.getpid():
            continue
        if own is not None and read_or_none(f"{folder}/cgroup", 4096) == own:
            found.append(int(pid))
    return found


def program_digest(path: Path) -> str:
    """Return the first 12 digits of the SHA-256 of a file, "" if it cannot be read."""
    import hashlib

    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError:
        return ""
