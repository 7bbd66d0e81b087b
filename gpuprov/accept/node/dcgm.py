"""DCGM's own diagnostics, if DCGM is installed; its output is returned unparsed."""

from gpuprov.probe.node.base import find_program, run_anyway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

TEXT_LIMIT = 256 * 1024
"""Maximum length of DCGM's output in characters."""


def installed() -> bool:
    """Return whether DCGM's tool `dcgmi` is found in PATH."""
    return find_program("dcgmi") is not None


def diagnose(_: str, arguments: "Any") -> "Values":
    """Run `dcgmi diag` in a worker; return `run` (the level), exit `code`, `said` and `errors`.

    `said` is cut after `TEXT_LIMIT` characters; `errors` has the last 2,000 characters.

    Args:
        arguments: level and time limit in seconds.

    Raises:
        Failed: it did not end in time.
    """
    level, seconds = arguments
    code, said, errors = run_anyway("dcgmi", "diag", "-r", str(level), "-j", seconds=seconds)
    return {"run": level, "code": code, "said": said[:TEXT_LIMIT], "errors": errors[-2000:]}
