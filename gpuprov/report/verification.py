"""Recap of a verification as text: nodes folded, each failure once with its differences."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

from gpuprov.drift.judge import differing
from gpuprov.drift.text import value
from gpuprov.model.nodeset import fold, fold_alike
from gpuprov.verify.verdict import EXIT_OF, CheckResult, Verdict

Failures = dict[str, list[tuple[str, CheckResult]]]


def recap(verdict: Verdict, *, details: bool = False) -> str:
    """Return the nodes by status, then each failure once, with its expected and seen value and the remedy.

    Args:
        details: add the output of commands on the first node of each failure.
    """
    return "\n".join([*_nodes(verdict), *_failures(verdict, details)])


def _nodes(verdict: Verdict) -> Iterator[str]:
    """Yield a line for the nodes of each status and message, passed nodes first."""
    for status in EXIT_OF:
        result = ((node.name, node.message) for node in verdict.nodes if node.status == status)
        for names, message in fold_alike(result):
            yield f"{status:<12} {names}" + (f"  {message}" if message else "")


def _failures(verdict: Verdict, details: bool) -> Iterator[str]:
    """Yield the lines of each failure; nodes with the same check and values share one."""
    same: Failures = defaultdict(list)
    for node in verdict.nodes:
        for check in node.failed_checks:
            key = json.dumps([check.check, check.expected, check.actual], sort_keys=True)
            same[key].append((node.name, check))
    for found in same.values():
        names, (_, check) = [name for name, _ in found], found[0]
        expected, actual = differing(check.expected, check.actual)
        *looked_at, to_mend = check.detail.splitlines() or [""]
        yield f"\n{check.check}  {fold(names)}"
        yield f"  expected  {value(expected)}"
        yield f"  seen      {value(actual)}"
        yield from (f"  {line}" for line in (looked_at if details else ()))
        yield f"  to fix    {to_mend.replace(found[0][0], fold(names))}"
