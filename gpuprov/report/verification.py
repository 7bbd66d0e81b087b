"""Recap of a verification as text: nodes folded, each failure once with its differences."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from gpuprov.drift.judge import differing
from gpuprov.drift.text import value
from gpuprov.model.nodeset import fold, fold_alike
from gpuprov.roles.causes import causes
from gpuprov.untrusted import on_one_line
from gpuprov.verify.verdict import EXIT_OF, CheckResult, NodeVerdict, Verdict

Failures = dict[str, list[tuple[str, CheckResult, str | None]]]


def recap(
    verdict: Verdict, *, details: bool = False, tried: Mapping[str, Collection[str]] | None = None
) -> str:
    """Return the nodes by status, then each failure once, with its expected and seen value and the remedy.

    Args:
        details: add the output of commands on the first node of each failure.
        tried: node → checks that apply has just tried to correct; it is not proposed for them again.
    """
    return "\n".join([*_nodes(verdict), *_failures(verdict, details, tried or {})])


def _nodes(verdict: Verdict) -> Iterator[str]:
    """Yield a line for the nodes of each status and message, passed nodes first."""
    for status in EXIT_OF:
        result = ((node.name, node.message) for node in verdict.nodes if node.status == status)
        for names, message in fold_alike(result):
            yield f"{status:<12} {names}" + (f"  {on_one_line(message)}" if message else "")


def _failures(verdict: Verdict, details: bool, tried: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield the lines of each failure: what was expected and seen, with `details` what was looked at, and
    what to do; nodes with the same check, values and kind of remedy share one.
    """
    same: Failures = defaultdict(list)
    for node in verdict.nodes:
        hints = _hints(node, tried.get(node.name, ()))
        for check in node.failed_checks:
            hint = hints.get(check.check)
            key = json.dumps([check.check, check.expected, check.actual, hint], sort_keys=True)
            same[key].append((node.name, check, hint))
    for found in same.values():
        names, (first, check, hint) = fold(name for name, *_ in found), found[0]
        expected, actual = differing(check.expected, check.actual)
        *looked_at, to_mend = map(on_one_line, check.detail.splitlines() or [""])
        yield f"\n{check.check}  {names}"
        yield f"  expected  {value(expected)}"
        yield f"  seen      {value(actual)}"
        # Further in than the lines of gpuprov: a node's output cannot look like one of them.
        yield from (f"    {line}" for line in (looked_at if details else ()))
        yield f"  to fix    {hint.format(nodes=names) if hint else to_mend.replace(first, names)}"


def _hints(node: NodeVerdict, tried: Collection[str]) -> dict[str, str]:
    """Return check → what to do instead of its own remedy, where that cannot correct it.

    Args:
        tried: checks that apply has just tried to correct.
    """
    failed = [check.check for check in node.failed_checks]
    found = {}
    for check in node.failed_checks:
        reboots = check.detail.endswith(f"gpuprov apply --reboot -l {node.name}")
        if reboots and (because := causes(check.check, failed)):
            found[check.check] = f"correct {', '.join(because)} first, which causes this; a reboot does not"
        elif check.check in tried:
            found[check.check] = (
                "apply has run for this without effect; for the cause: gpuprov doctor {nodes}"
            )
    return found
