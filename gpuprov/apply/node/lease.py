"""Lease on this node: the run that holds it may change the node, and it expires if its controller dies.

A lease is measured in the time since this node's boot, which includes suspended time and cannot be set: the
clocks of controllers, or a step of the node's own, do not lengthen or end it. The duration of a boot is not
known, so a lease from before a boot holds for its full duration again, counted from the boot.
"""

import contextlib
import errno
import json
import os
import time

from gpuprov.files import mutex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Lease = dict[str, Any]

FOLDER = "/var/lib/gpuprov"
PATH = FOLDER + "/lease.json"
RUN = "/run/gpuprov"
PROC = "/proc"
WAIT_S = 20.0
"""Seconds to wait for the lock; an operation on a lease takes milliseconds."""
LONGEST_S = 86400.0
"""Maximum duration of a lease in seconds."""
ATTEMPT_S = 60.0
"""Seconds without a renewal after which the run's next worker attempt may take an earlier one's lease."""
RUNS_KEPT = 20
"""Number of runs whose last attempt is recorded."""


def current() -> "Lease | None":
    """Return the lease that holds now, or None.

    It includes the seconds until its end (`left_s`), since its last renewal (`silent_s`), and since the run
    took the node (`had_s`, None if that is not known).
    """
    lease = _last()
    return _dated(lease) if lease and _left_s(lease) > 0 else None


def take(run: str, holder: str, seconds: float) -> "Lease":
    """Take the lease for a run or worker attempt; return the one that holds, which may be another run's.

    Args:
        run: its id, `RUN` or `RUN/7.a1b2`.
        holder: user and machine, for messages.
        seconds: duration from now on.

    Raises:
        OSError: a later worker attempt has held the node, or the lease cannot be written.
    """
    with alone("lease"):
        held = current()
        if held and held["run"] != run and not _follows(run, held):
            return held
        _supersede_earlier_attempts(run)
        return _give(run, holder, seconds, held)


def renew(run: str, holder: str, seconds: float) -> "Lease | None":
    """Renew a run's lease, also after its end; return the one that holds, or None.

    If another run has held the node meanwhile, the lease on the disk is that run's or is gone, and is not
    changed. Arguments are those of `take`.

    Raises:
        OSError: the lock of leases is not free in time, or the lease cannot be written.
    """
    with alone("lease"):
        last = _last()
        if last is None or last["run"] != run:
            return current()
        return _give(run, holder, seconds, last)


def release(run: str) -> None:
    """Remove the lease if it is the run's, or a worker attempt's that was not renewed for `ATTEMPT_S`.

    Another run's lease is not changed.

    Raises:
        OSError: the lock of leases is not free in time, or the lease cannot be removed.
    """
    with alone("lease"):
        held = current()
        if held and (held["run"] == run or _follows(run, held)):
            os.unlink(PATH)


def pass_on(run: str, holder: str, seconds: float) -> "Lease | None":
    """Transfer the lease from a worker attempt to its run; return the one that then holds, or None.

    A lease that is not this attempt's is not changed.

    Raises:
        OSError: the lock of leases is not free in time, or the lease cannot be written.
    """
    with alone("lease"):
        held = current()
        if held and held["run"] == run:
            return _give(family(run), holder, seconds, held)
        return held


def complaint(run: str) -> str:
    """Return the reason why a run may not change this node now; empty if it holds the lease."""
    held = current()
    if held and held["run"] == run:
        return ""
    return "leased by {holder}, run {run}".format(**held) if held else "no longer leased to a run"


def family(run: str) -> str:
    """Return the id of the run that a worker attempt belongs to: `RUN` for `RUN/7.a1b2`, and for `RUN`."""
    return run.partition("/")[0]


def _number(run: str) -> int:
    """Return the number of a worker attempt, 7 for `RUN/7.a1b2`; 0 for a run itself."""
    number = run.partition("/")[2].partition(".")[0]
    return int(number) if number.isdecimal() else 0


def _follows(run: str, held: "Lease") -> bool:
    """Return whether a run or worker attempt may take a lease of the same family.

    It may take the run's own at once, and a worker attempt's once it was not renewed for `ATTEMPT_S`.
    """
    if family(run) != family(held["run"]):
        return False
    return bool(held["run"] == family(run) or _silent_s(held) >= ATTEMPT_S)


def _left_s(lease: "Lease") -> float:
    """Return the seconds until a lease ends; 0 or less after its end."""
    if "boot" not in lease:
        # An older gpuprov's, by the wall clock: one from the future was given before the clock was set back.
        left = float(lease["until"] - time.time())
        return left if left <= lease["seconds"] else 0.0
    return float(lease["seconds"] - _silent_s(lease))


def _silent_s(lease: "Lease") -> float:
    """Return the seconds since a lease was renewed, or since the boot if that was later."""
    if "boot" not in lease:
        return float(time.time() - lease["until"] + lease["seconds"])
    boot, awake = now()
    return float(awake - lease["renewed"] if _is_of(lease, boot, awake) else awake)


def _had_s(lease: "Lease") -> "float | None":
    """Return the seconds since the run took the node; None if not known.

    The wall clock is used if the run took the node before the boot, or if an older gpuprov gave the lease.
    """
    boot, awake = now()
    if _is_of(lease, boot, awake) and "taken" in lease:
        return float(awake - lease["taken"])
    had = float(time.time() - lease["since"]) if "since" in lease else -1.0
    return had if had >= 0 else None


def _is_of(lease: "Lease", boot: str, awake: float) -> bool:
    """Return whether a lease was last renewed during this boot."""
    return bool(lease.get("boot") == boot and lease["renewed"] <= awake)


def now() -> "tuple[str, float]":
    """Return the id of this boot and the seconds since; in a container since the container's own boot."""
    with open(PROC + "/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    with open(PROC + "/uptime") as file:
        awake = float(file.read().split()[0])
    with open(PROC + "/1/stat") as file:  # proc(5): field 22 is its start, in ticks after the machine's boot
        begun = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return boot, awake - begun


def _supersede_earlier_attempts(run: str) -> None:
    """Record the number of a worker attempt, and refuse one that is lower than the last.

    Otherwise an attempt that was suspended before it took the node could take it after a later attempt.

    Raises:
        OSError: a later attempt of the run has held the node.
    """
    number = _number(run)
    if not number:
        return
    path = FOLDER + "/attempts.json"
    try:
        with open(path) as file:
            known = dict(json.load(file))
    except (OSError, ValueError, TypeError):
        known = {}
    if known.get(family(run), 0) > number:
        raise OSError(errno.ESTALE, "a later attempt of this run has changed the node", path)
    known.pop(family(run), None)
    known[family(run)] = number
    _write(path, dict(list(known.items())[-RUNS_KEPT:]))


@contextlib.contextmanager
def alone(what: str, seconds: float = WAIT_S) -> "Iterator[None]":
    """Hold an exclusive lock of this node, named `what`, during the context; wait for it up to `seconds`.

    Raises:
        OSError: another process held it all the time, or users other than root may write gpuprov's folders.
    """
    mutex.own_folder(RUN, 0o755)
    mutex.own_folder(FOLDER, 0o755)
    with mutex.held(RUN + "/locks/" + what, seconds):
        yield


def _last() -> "Lease | None":
    """Return the lease on the disk, also after its end, with at most `LONGEST_S` seconds; None if it is
    missing or damaged.
    """
    try:
        with open(PATH) as file:
            lease = json.load(file)  # type: Lease
        numbers = ["until", "seconds"] + [name for name in ("since", "renewed", "taken") if name in lease]
        is_whole = all(abs(float(lease[name])) < 1e15 for name in numbers) and isinstance(lease["run"], str)
        if "boot" in lease:
            lease["renewed"] + 0
        lease["seconds"] = min(lease["seconds"], LONGEST_S)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return lease if is_whole else None


def _give(run: str, holder: str, seconds: float, before: "Lease | None") -> "Lease":
    """Write and return a lease that is renewed now; with a lease `before`, it keeps the start of that one."""
    clock, (boot, awake) = time.time(), now()
    had_s = _had_s(before) if before else 0.0
    lease = {"run": run, "holder": holder, "seconds": seconds, "boot": boot, "renewed": awake}
    lease.update({} if had_s is None else {"taken": awake - had_s, "since": clock - had_s})
    lease["until"] = clock + seconds  # for an older gpuprov, which reads this and `since`
    _write(PATH, lease)
    return _dated(lease)


def _write(path: str, document: "dict[str, Any]") -> None:
    """Replace a file by a JSON document, atomically, readable by every user."""
    with open(path + ".new", "w") as file:
        os.fchmod(file.fileno(), 0o644)
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)


def _dated(lease: "Lease") -> "Lease":
    """Return a copy of a lease with `left_s`, `silent_s` and `had_s`, see `current`."""
    return dict(lease, left_s=_left_s(lease), silent_s=_silent_s(lease), had_s=_had_s(lease))
