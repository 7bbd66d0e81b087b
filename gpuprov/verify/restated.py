"""Verdicts of workers: the checks and remedies of the lock, with values of limited size."""

from __future__ import annotations

from collections.abc import Mapping

from gpuprov.errors import NodeFailed
from gpuprov.roles import Expectation
from gpuprov.ssh.answers import require_stated
from gpuprov.untrusted import on_one_line
from gpuprov.verify.values import cut, plain
from gpuprov.verify.verdict import CheckResult, NodeVerdict
from gpuprov.verify.wanted import remedy

DETAIL_LINES = 200
"""Maximum number of lines of a check's detail."""


def restated(node: NodeVerdict, stated: Mapping[str, Expectation]) -> NodeVerdict:
    """Return a worker's verdict, with the remedies of the lock, and values and details of limited size.

    Args:
        stated: check → the node's expectation, of all checks that the worker had to run.

    Raises:
        NodeFailed: a check is not one of the lock, or is there twice, the status contradicts the checks, or a
            check is missing in a complete verdict.
    """
    require_stated((each.check for each in node.checks), stated)
    checks = [_of_lock(each, stated[each.check], node.name) for each in node.checks]
    failed = any(each.status == "failed" for each in checks)
    if node.status in ("passed", "failed") and failed is (node.status == "passed"):
        raise NodeFailed(f"a worker answered {node.status}, which its checks contradict")
    missing = stated.keys() - {each.check for each in checks}
    if node.status in ("passed", "failed") and missing:
        seen = f"a worker answered {node.status} with {len(checks)} of {len(stated)} checks"
        raise NodeFailed(f"{seen}; {min(missing)} is missing")
    return NodeVerdict(node.name, node.status, checks, on_one_line(cut(node.message)))


def _of_lock(result: CheckResult, expectation: Expectation, node: str) -> CheckResult:
    """Return one result with at most `DETAIL_LINES` lines of detail; if it failed, the last line is the
    remedy of the lock.
    """
    expected, actual = plain(result.expected), plain(result.actual)
    lines: list[str] = [on_one_line(cut(line)) for line in result.detail.split("\n")[:DETAIL_LINES]]
    if result.status == "failed":
        lines[-1:] = [remedy(expectation, node)]
    return CheckResult(result.check, result.status, expected, actual, "\n".join(lines), result.seconds)
