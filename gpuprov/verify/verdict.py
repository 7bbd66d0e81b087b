"""Results of verification: one verdict over nodes, each with its checks."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gpuprov.errors import Exit, worst

NodeStatus = Literal["passed", "failed", "unreachable", "error"]
EXIT_OF = {
    "passed": Exit.OK,
    "failed": Exit.FAILED,
    "error": Exit.FAILED,
    "unreachable": Exit.UNREACHABLE,
}
"""Status of a node → exit code."""


@dataclass(frozen=True)
class CheckResult:
    """One check on one node.

    Attributes:
        check: id of the expectation, such as `driver.version`.
        expected, actual: values as in JSON; equal if it passed.
        detail: output of commands and the remedy; empty if it passed.
        seconds: duration.
    """

    check: str
    status: Literal["passed", "failed"]
    expected: Any
    actual: Any
    detail: str
    seconds: float


@dataclass(frozen=True)
class NodeVerdict:
    """One node with the checks that ran.

    Attributes:
        status: `passed` if all checks ran and passed, `failed` if one failed; `unreachable` or `error` if the
            node could not be judged completely.
        message: why it is unreachable or could not be judged; otherwise empty.
    """

    name: str
    status: NodeStatus
    checks: list[CheckResult] = field(default_factory=list)
    message: str = ""

    @property
    def failed_checks(self) -> list[CheckResult]:
        """The checks that failed, in the order they ran."""
        return [check for check in self.checks if check.status == "failed"]


@dataclass(frozen=True)
class Verdict:
    """All nodes, and the time of the run (ISO 8601, UTC)."""

    checked_at: str
    nodes: list[NodeVerdict]

    @property
    def exit_code(self) -> Exit:
        """The exit code: 0 if every node passed; a failed check takes precedence over an unreachable node."""
        return worst(*(EXIT_OF[node.status] for node in self.nodes))

    def document(self) -> dict[str, Any]:
        """Return the JSON document, schema gpuprov.verify/1, with the number of nodes in each status."""
        counts: Counter[str] = Counter(node.status for node in self.nodes)
        return {
            "schema": "gpuprov.verify/1",
            "checked_at": self.checked_at,
            "nodes": [asdict(node) for node in self.nodes],
            "summary": {"nodes": len(self.nodes)} | {status: counts[status] for status in EXIT_OF},
        }
