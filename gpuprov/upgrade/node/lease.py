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
    """The lease that holds now; one from the future was given before the clock was set back, and is over."""
    try:
        with open(PATH) as file:
            lease = json.load(file)  # type: Lease
        left = lease["until"] - time.time()
        return lease if 0 < left <= lease["seconds"] else None
    except (OSError, ValueError, KeyError):
        return None


def take(run: str, holder: str, seconds: float) -> "Lease":
    """Take or renew the lease for a run; returns the one that holds, which may be another run's."""
    with alone("lease"):
        held = current()
        if held and held["run"] != run:
            return held
        lease = {"run": run, "holder": holder, "seconds": seconds, "until": time.time() + seconds}
        with open(PATH + ".new", "w") as file:
            json.dump(lease, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(PATH + ".new", PATH)
        return lease


def release(run: str) -> None:
    """Give the lease back, if it is that run's."""
    with alone("lease"):
        held = current()
        if held and held["run"] == run:
            os.unlink(PATH)


@contextlib.contextmanager
def alone(what: str) -> "Iterator[None]":
    """Of all that do this on the node, one at a time; who comes later waits."""
    os.makedirs(FOLDER, exist_ok=True)
    with open(FOLDER + "/" + what + ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
