"""Who may change this node: a lease that one run holds, and that ends by itself when its controller died.

The time since this node's boot decides, which goes on while it sleeps and is never set: neither the clocks
of controllers nor a step of this one's lengthen or end a lease. How long a boot took is not known, so a lease
from before the boot holds as long once more, counted from the boot.
"""

import contextlib
import errno
import json
import os
import time

from gpuprov import mutex

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
"""Leases are given in milliseconds."""
LONGEST_S = 86400.0
HAND_S = 60.0
"""After so many seconds without a renewal a hand of a run is followed by the run's next one."""
RUNS_KEPT = 20


def current() -> "Lease | None":
    """The lease that holds now, with the seconds that it has left (`left_s`), that it was not renewed for
    (`silent_s`), and that the run has had the node for (`had_s`, None where that is not known).
    """
    lease = _last()
    return _dated(lease) if lease and _left_s(lease) > 0 else None


def take(run: str, holder: str, seconds: float) -> "Lease":
    """Take the lease for a run or a hand of it; returns the one that holds, which may be another's."""
    with alone("lease"):
        held = current()
        if held and held["run"] != run and not _follows(run, held):
            return held
        _leave_earlier_hands_behind(run)
        return _give(run, holder, seconds, held)


def renew(run: str, holder: str, seconds: float) -> "Lease | None":
    """Make a run's lease last longer, also one that is over; returns the one that holds, or None.

    Whoever had the node in between has left another lease, or none: then it stays as it is.
    """
    with alone("lease"):
        last = _last()
        if last is None or last["run"] != run:
            return current()
        return _give(run, holder, seconds, last)


def release(run: str) -> None:
    """Give the lease back, if it is that run's, or of a hand of it that was silent for long."""
    with alone("lease"):
        held = current()
        if held and (held["run"] == run or _follows(run, held)):
            os.unlink(PATH)


def pass_on(run: str, holder: str, seconds: float) -> "Lease | None":
    """From a hand back to its run; returns the lease that holds then."""
    with alone("lease"):
        held = current()
        if held and held["run"] == run:
            return _give(family(run), holder, seconds, held)
        return held


def complaint(run: str) -> str:
    """Why a run may not work here now; empty where it may."""
    held = current()
    if held and held["run"] == run:
        return ""
    return "leased by {holder}, run {run}".format(**held) if held else "leased to no run any more"


def family(run: str) -> str:
    """The run that a hand belongs to: `RUN` of `RUN/7.a1b2`; a run is its own."""
    return run.partition("/")[0]


def _number(run: str) -> int:
    number = run.partition("/")[2].partition(".")[0]
    return int(number) if number.isdigit() else 0


def _follows(run: str, held: "Lease") -> bool:
    """Whether a run or a hand may have what another of the same family holds: at once what the run itself
    holds, a hand's when it was not renewed for long."""
    if family(run) != family(held["run"]):
        return False
    return bool(held["run"] == family(run) or _silent_s(held) >= HAND_S)


def _left_s(lease: "Lease") -> float:
    if "boot" not in lease:
        # An older gpuprov's, by the clock: one from the future was given before that was set back.
        left = float(lease["until"] - time.time())
        return left if left <= lease["seconds"] else 0.0
    return float(lease["seconds"] - _silent_s(lease))


def _silent_s(lease: "Lease") -> float:
    """Seconds since a lease was renewed; since the boot, if that was later."""
    if "boot" not in lease:
        return float(time.time() - lease["until"] + lease["seconds"])
    boot, awake = now()
    return float(awake - lease["renewed"] if _is_of(lease, boot, awake) else awake)


def _had_s(lease: "Lease") -> "float | None":
    """By the clock, where the run had the node before the boot, or an older gpuprov gave the lease."""
    boot, awake = now()
    if _is_of(lease, boot, awake) and "taken" in lease:
        return float(awake - lease["taken"])
    had = float(time.time() - lease["since"]) if "since" in lease else -1.0
    return had if had >= 0 else None


def _is_of(lease: "Lease", boot: str, awake: float) -> bool:
    return bool(lease.get("boot") == boot and lease["renewed"] <= awake)


def now() -> "tuple[str, float]":
    """This boot's id, and the seconds since; of a container its own boot."""
    with open(PROC + "/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    with open(PROC + "/uptime") as file:
        awake = float(file.read().split()[0])
    with open(PROC + "/1/stat") as file:  # proc(5): field 22 is when it was started, after the machine's boot
        begun = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return boot, awake - begun


def _leave_earlier_hands_behind(run: str) -> None:
    """A hand that was frozen before it took the node, and thaws after a later one, must not have it."""
    number = _number(run)
    if not number:
        return
    path = FOLDER + "/hands.json"
    try:
        with open(path) as file:
            known = dict(json.load(file))
    except (OSError, ValueError, TypeError):
        known = {}
    if known.get(family(run), 0) > number:
        raise OSError(errno.ESTALE, "a later hand of this run has had the node", path)
    known.pop(family(run), None)
    known[family(run)] = number
    _write(path, dict(list(known.items())[-RUNS_KEPT:]))


@contextlib.contextmanager
def alone(what: str, seconds: float = WAIT_S) -> "Iterator[None]":
    """Of all that do this on the node, one at a time; who comes later waits so long.

    Raises:
        OSError: another process was at it all the time, or users other than root may write our folders.
    """
    mutex.own_folder(RUN, 0o755)
    mutex.own_folder(FOLDER, 0o755)
    with mutex.held(RUN + "/locks/" + what, seconds):
        yield


def _last() -> "Lease | None":
    """The lease on the disk, whether it holds or not; half of one is none."""
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
    clock, (boot, awake) = time.time(), now()
    had_s = _had_s(before) if before else 0.0
    lease = {"run": run, "holder": holder, "seconds": seconds, "boot": boot, "renewed": awake}
    lease.update({} if had_s is None else {"taken": awake - had_s, "since": clock - had_s})
    lease["until"] = clock + seconds  # read by an older gpuprov, as `since` is
    _write(PATH, lease)
    return _dated(lease)


def _write(path: str, document: "dict[str, Any]") -> None:
    with open(path + ".new", "w") as file:
        os.fchmod(file.fileno(), 0o644)
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)


def _dated(lease: "Lease") -> "Lease":
    return dict(lease, left_s=_left_s(lease), silent_s=_silent_s(lease), had_s=_had_s(lease))
