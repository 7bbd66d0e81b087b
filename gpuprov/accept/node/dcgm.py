"""DCGM's own diagnostics, if DCGM is installed; its output is returned unparsed."""

import re

from gpuprov.probe.node.base import Failed, find_program, run, run_anyway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

TEXT_LIMIT = 256 * 1024
"""Maximum length of DCGM's output in characters."""
HOST, PORT = "127.0.0.1", 5555
"""Where DCGM's daemon, which is root's, is asked."""
LISTENERS = (
    "ss -Hltne 'sport = :{} and ( src {} or src 0.0.0.0 or src [::] )'"
    " | grep -avE '^LISTEN +[0-9]+ +[0-9]+ +\\[::\\]' | head -n 9"
).format(PORT, HOST)
"""Command that lists the sockets that get the connections to `HOST`; `[::]` is one for IPv6 only.

As the kernel permits no second user among them, and a user can have any number, the first ones are enough.
"""


def installed() -> bool:
    """Return whether DCGM's tool `dcgmi` is found in PATH."""
    return find_program("dcgmi") is not None


def diagnose(_: str, arguments: "Any") -> "Values":
    """Run `dcgmi diag` in a worker; return `run` (the level), exit `code`, `said` and `errors`.

    `said` is cut after `TEXT_LIMIT` characters; `errors` has the last 2,000 characters. If a user listens in
    place of DCGM's daemon, it is not asked: return only `user`, the user's number.

    Args:
        arguments: level and time limit in seconds.

    Raises:
        Failed: it did not end in time, or root's daemon does not listen, or has ended meanwhile.
    """
    level, seconds = arguments
    sockets = _listeners()
    users = [user for user, _ in sockets if user]
    if users:
        return {"user": users[0]}
    if not sockets:
        raise Failed("its daemon does not listen on {}:{}".format(HOST, PORT))
    words = ("diag", "--host", HOST, "-r", str(level), "-j")
    code, said, errors = run_anyway("dcgmi", *words, seconds=seconds)
    if _listeners() != sockets:  # a user could have answered in its place
        raise Failed("its daemon ended meanwhile")
    return {"run": level, "code": code, "said": said[:TEXT_LIMIT], "errors": errors[-2000:]}


def _listeners() -> "list[tuple[str, str]]":
    """Return user, empty for root, and number of each socket that `LISTENERS` lists."""
    pattern = r"(?m)^LISTEN(?: +\S+){4}(?: +timer:\S+)?(?: +uid:(\d+))? +ino:(\d+)"
    return re.findall(pattern, run("sh", "-c", LISTENERS))
