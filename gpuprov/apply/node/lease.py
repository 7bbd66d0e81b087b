"""Who may change this node: a lease that one run holds, and that ends by itself when its controller died.

The node's own clock decides, so controllers need not agree on the time.
"""

import contextlib
import errno
import fcntl
import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Lease = dict[str, Any]

FOLDER = "/var/lib/gpuprov"
PATH = FOLDER + "/lease.json"
HAND_S = 60.0
"""After so many seconds without a renewal a hand of a run is followed by the run's next one."""
RUNS_KEPT = 20


def current() -> "Lease | None":
    """The lease that holds now, with the node's time (`now`).

    One from the future was given before the clock was set back, and is over.
    """
    lease = _last()
    if lease is None or not 0 < lease["until"] - time.time() <= lease["seconds"]:
        return None
    return _dated(lease)


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


def _silent_s(held: "Lease") -> float:
    return float(time.time() - held["until"] + held["seconds"])


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
    with open(path + ".new", "w") as file:
        json.dump(dict(list(known.items())[-RUNS_KEPT:]), file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)


@contextlib.contextmanager
def alone(what: str) -> "Iterator[None]":
    """Of all that do this on the node, one at a time; who comes later waits."""
    os.makedirs(FOLDER, exist_ok=True)
    with open(FOLDER + "/" + what + ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _last() -> "Lease | None":
    """The lease on the disk, whether it holds or not; half of one is none."""
    try:
        with open(PATH) as file:
            lease = json.load(file)  # type: Lease
        lease["until"] + lease["seconds"]
        return lease if isinstance(lease["run"], str) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _give(run: str, holder: str, seconds: float, before: "Lease | None") -> "Lease":
    now = time.time()
    since = before.get("since", now) if before else now
    lease = {"run": run, "holder": holder, "since": since, "seconds": seconds, "until": now + seconds}
    with open(PATH + ".new", "w") as file:
        json.dump(lease, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(PATH + ".new", PATH)
    return _dated(lease)


def _dated(lease: "Lease") -> "Lease":
    return dict(lease, now=time.time())
