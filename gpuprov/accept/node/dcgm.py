"""DCGM's own diagnostics, if DCGM is installed; its output is returned unparsed."""

import re

from gpuprov.probe.node.base import Failed, find_program, run, run_anyway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

TEXT_LIMIT = 256 * 1024
"""Maximum length of DCGM's output in characters."""
PORT = 5555
"""Port of this machine on which `dcgmi` asks DCGM's daemon, which is root's."""


def installed() -> bool:
    """Return whether DCGM's tool `dcgmi` is found in PATH."""
    return find_program("dcgmi") is not None


def diagnose(_: str, arguments: "Any") -> "Values":
    """Run `dcgmi diag` in a worker; return `run` (the level), exit `code`, `said` and `errors`.

    `said` is cut after `TEXT_LIMIT` characters; `errors` has the last 2,000 characters.

    Args:
        arguments: level and time limit in seconds.

    Raises:
        Failed: it did not end in time; or a user listens on the daemon's port, as any can who is there first.
    """
    level, seconds = arguments
    other = re.search(r"\buid:([1-9]\d*)", run("ss", "-Hltne", "sport = :{}".format(PORT)))
    if other:
        raise Failed("user {} listens on port {}, on which dcgmi asks DCGM".format(other.group(1), PORT))
    code, said, errors = run_anyway("dcgmi", "diag", "-r", str(level), "-j", seconds=seconds)
    return {"run": level, "code": code, "said": said[:TEXT_LIMIT], "errors": errors[-2000:]}
