"""A run of drift as JUnit XML: each check of a node's group is a case."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gpuprov.verify.junit import junit_xml

if TYPE_CHECKING:
    from gpuprov.drift.judge import Difference, NodeDrift
    from gpuprov.history import Run


def drift_xml(run: Run) -> str:
    """Return JUnit XML of a run: each check of a node's group passes or fails; a node without facts has
    no checks.
    """
    checks = run.checks_by_node()
    nodes = [_as_verdict(node, checks[node.name]) for node in run.nodes]
    return junit_xml({"checked_at": run.at, "nodes": nodes}, f"gpuprov {run.verb}")


def _as_verdict(node: NodeDrift, checks: Iterable[str]) -> dict[str, Any]:
    """Return a node's result in the form of a verification, with all checks of its group."""
    found = {each.check: each for each in node.drift}
    status = {"in_sync": "passed", "drifted": "failed"}.get(node.status, node.status)
    judged = [_as_result(check, found.get(check)) for check in checks] if node.reason is None else []
    return {"name": node.name, "status": status, "checks": judged, "message": node.reason or ""}


def _as_result(check: str, difference: Difference | None) -> dict[str, Any]:
    """Return the result of a check in the form of a verification: passed without a difference."""
    if difference is None:
        return {"check": check, "status": "passed", "seconds": 0.0}
    seen = {"actual": difference.actual, "expected": difference.expected}
    mend = f"role {difference.role}" if difference.role else "a reboot" if difference.reboot else "no role"
    return {"check": check, "status": "failed", **seen, "detail": f"fixed by {mend}", "seconds": 0.0}
