"""Program that reads, takes, renews or gives back a lease on a node, and returns the one that then holds."""

from gpuprov.apply.node import lease
from gpuprov.probe.node.main import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ACTS: "dict[str, Callable[..., Any]]" = {
    "current": lease.current,
    "take": lease.take,
    "renew": lease.renew,
    "pass_on": lease.pass_on,
    "release": lease.release,
}
"""Name → act."""


def main(question: "dict[str, Any]") -> None:
    """Run `act` with `arguments`, and write its result or the operating system's error with the `nonce`."""
    try:
        answer = {"result": ACTS[question["act"]](*question["arguments"])}
    except OSError as error:
        answer = {"error": "{}: {}".format(error.filename or "the node", error.strerror)}
    say(question["nonce"], answer)
