"""DCGM's own diagnosis, where it is installed; what it says is handed on as it is."""

from gpuprov.probe.node.base import find_program, run_anyway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

TEXT_LIMIT = 256 * 1024


def installed() -> bool:
    """Whether DCGM's tool is here."""
    return find_program("dcgmi") is not None


def diagnose(_: str, arguments: "Any") -> "Values":
    """What a worker does: `dcgmi diag` at one of its levels, within so many seconds.

    Raises:
        Failed: it did not end in time.
    """
    level, seconds = arguments
    code, said, errors = run_anyway("dcgmi", "diag", "-r", str(level), "-j", seconds=seconds)
    return {"run": level, "code": code, "said": said[:TEXT_LIMIT], "errors": errors[-2000:]}
