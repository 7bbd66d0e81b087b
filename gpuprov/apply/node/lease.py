"""Who may change this node: a lease that one run holds, and that ends by itself when its controller died.

The node's own clock decides, so controllers need not agree on the time.
"""

import contextlib
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


def current() -> "Lease | None":
    """The lease that holds now, with the node's time (`now`).

    One from the future was given before the clock was set back, and is over.
    """
    lease = _last()
    if lease is None or not 0 < lease["until"] - time.time() <= lease["seconds"]:
        return None
    return _dated(lease)


def take(run: str, holder: str, seconds: float) -> "Lease":
    """Take the lease for a run; returns the one that holds, which may be another run's."""
    with alone("lease"):
        held = current()
        if held and held["run"] != run:
            return held
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
    """Give the lease back, if it is that run's."""
    with alone("lease"):
        held = current()
        if held and held["run"] == run:
            os.unlink(PATH)


def complaint(run: str) -> str:
    """Why a run may not work here now; empty where it may."""
    held = current()
    if held and held["run"] == run:
        return ""
    return "leased by {holder}, run {run}".format(**held) if held else "leased to no run any more"


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
