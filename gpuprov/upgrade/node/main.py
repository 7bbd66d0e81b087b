"""One act on a node, asked by name; the answer is its result, or the reason why there is none."""

from gpuprov.probe.node.base import Failed
from gpuprov.probe.node.main import say
from gpuprov.upgrade.node import ahead, lastgood, lease

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

QUICK: "dict[str, Callable[..., Any]]" = {"take": lease.take, "release": lease.release}
WORK: "dict[str, Callable[..., Any]]" = {
    "fetch": ahead.fetch,
    "record": lastgood.record,
    "seal": lastgood.seal,
    "restore": lastgood.restore,
}


def main(question: "dict[str, Any]") -> None:
    """Do `act` with `arguments`."""
    try:
        answer = {"result": _done(question["act"], question["arguments"])}
    except Failed as failed:
        answer = {"error": str(failed)}
    except OSError as error:
        answer = {"error": "{}: {}".format(error.filename or "the node", error.strerror)}
    say(question["nonce"], answer)


def _done(name: str, arguments: "list[Any]") -> "Any":
    """Work goes on when its controller dies; the next one's waits for it."""
    if name in QUICK:
        return QUICK[name](*arguments)
    with lease.alone("work"):
        return WORK[name](*arguments)
