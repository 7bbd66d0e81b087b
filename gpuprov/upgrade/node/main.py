"""One act on a node, selected by name; the answer is its result or an error."""

from gpuprov.apply.node import lease
from gpuprov.probe.node.base import Failed
from gpuprov.probe.node.main import say
from gpuprov.upgrade.node import ahead, gpus, lastgood

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ACTS: "dict[str, Callable[..., Any]]" = {
    "fetch": ahead.fetch,
    "record": lastgood.record,
    "seal": lastgood.record_after,
    "restore": lastgood.restore,
    "gpu_use": gpus.use,
    "gpu_reset": gpus.reset,
}
"""Name → act."""


def main(question: "dict[str, Any]") -> None:
    """Run `act` with `arguments` for the run that `holds` the node's lease, and write the result or error.

    If `holds` is None, no lease is needed. `patience_s` is the time limit in seconds to wait for an act that
    another controller began.
    """
    try:
        how = question["holds"], question["patience_s"]
        answer = {"result": _done(question["act"], question["arguments"], *how)}
    except Failed as failed:
        answer = {"error": str(failed)}
    except OSError as error:
        answer = {"error": "{}: {}".format(error.filename or "the node", error.strerror)}
    say(question["nonce"], answer)


def _done(name: str, arguments: "list[Any]", run: "str | None", patience_s: float) -> "Any":
    """Return the result of an act, after waiting for one that a dead controller began.

    Raises:
        Failed: the run does not hold the lease after the wait, or the act failed.
        OSError: the other act did not end within `patience_s`.
    """
    with lease.alone("work", patience_s):
        complaint = lease.complaint(run) if run is not None else ""
        if complaint:
            raise Failed("nothing was done: the node is " + complaint)
        return ACTS[name](*arguments)
