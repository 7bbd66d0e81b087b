"""One act of a repair on a node, selected by name; the answer is its result or an error."""

from gpuprov.repair.node import gpus
from gpuprov.upgrade.node.main import answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ACTS: "dict[str, Callable[..., Any]]" = {"use": gpus.use, "reset": gpus.reset}
"""Name → act."""


def main(question: "dict[str, Any]") -> None:
    """Run one of `ACTS`, under the lease that the run must hold."""
    answer(question, ACTS)
