"""Recap of an apply: one line per node, and the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gpuprov.drift.judge import NodeDrift
from gpuprov.errors import Exit, worst
from gpuprov.files.runs import now
from gpuprov.model.nodeset import fold_alike
from gpuprov.untrusted import printable

if TYPE_CHECKING:
    from gpuprov.apply.converge import Convergence
    from gpuprov.verify.verdict import Verdict


def recap_lines(
    result: Convergence, verdict: Verdict | None, unanswered: Iterable[NodeDrift] = ()
) -> Iterator[str]:
    """Yield lines such as `gpu01  changed=9  rebooted  verified (24 checks)`, then nodes that were not
    applied.

    Args:
        unanswered: nodes without facts; their errors were reported before.
    """
    names = sorted({*result.outcomes, *result.drift})
    width = max(map(len, names), default=0)
    for name in names:
        yield f"{name:<{width}}  " + "  ".join(_words(name, result, verdict))
    for nodes, status in fold_alike((node.name, node.status) for node in unanswered):
        yield f"{nodes}  {status.upper()}  nothing was done"


def unexplained(result: Convergence, verdict: Verdict | None) -> list[str]:
    """Return nodes that did not pass verification, or on which a role failed without naming a cause;
    sorted.
    """
    judged = {node.name for node in verdict.nodes if node.status != "passed"} if verdict else set()
    failed = {
        name for name, outcome in result.outcomes.items() if not all(map(_is_explained, outcome.failed))
    }
    return sorted(failed | judged)


def _is_explained(failure: dict[str, Any]) -> bool:
    """Return whether a failure is a refusal, or names the file that overrides the lock."""
    return failure.get("role") == "preflight" or ", overruled by " in str(failure.get("msg"))


def _words(name: str, result: Convergence, verdict: Verdict | None) -> Iterator[str]:
    """Yield the parts of a node's line: changes, then a refusal or failure, or else reboot and verification.

    A node that was not verified has no such part.
    """
    outcome = result.outcomes.get(name)
    yield f"changed={outcome.changed if outcome else 0}"
    if outcome and outcome.compiled and outcome.ok:
        yield printable(f"compiled for {outcome.compiled}")
    if outcome and outcome.refused:
        yield printable(f"REFUSED  {outcome.refused}")
        return
    if outcome and not outcome.ok:
        failure = outcome.failed[0] if outcome.failed else {"task": "unreachable", "msg": outcome.unreachable}
        said = str(failure.get("msg")).partition("\n")[0]  # the rest was reported when it happened
        yield printable(f"FAILED  {failure.get('role') or ''}: {said}").replace("  : ", "  ")
        return
    if name in result.rebooted:
        yield "rebooted"
    if name in result.reboot_needed:
        yield "reboot needed"
    judged = next((node for node in verdict.nodes if node.name == name), None) if verdict else None
    if judged is None:
        return
    wrong = [check.check for check in judged.failed_checks]
    if judged.status == "passed":
        yield f"verified ({len(judged.checks)} checks)"
    else:
        yield "NOT VERIFIED  " + (", ".join(wrong) or judged.message)


def conclusion(unanswered: Iterable[NodeDrift], result: Convergence, verdict: Verdict | None) -> Exit:
    """Return the exit code of an apply: a reboot that waits for consent counts as drift.

    A refused node was not changed: another run holds its lease, or its packages are newer than the lock's.
    """
    codes = [Exit.UNREACHABLE if node.status == "unreachable" else Exit.FAILED for node in unanswered]
    for outcome in result.outcomes.values():
        if outcome.refused:
            codes.append(Exit.REFUSED)
        elif not outcome.ok:
            codes.append(Exit.UNREACHABLE if outcome.unreachable and not outcome.failed else Exit.FAILED)
    if result.reboot_needed:
        codes.append(Exit.DRIFT)
    if verdict:
        codes.append(verdict.exit_code)
    return worst(*codes)


def apply_document(
    run: str | None, unanswered: Iterable[NodeDrift], result: Convergence, verdict: Verdict | None
) -> dict[str, Any]:
    """Return a document with schema gpuprov.apply/1: the result of each node, also of those without an
    answer, and the verification.
    """
    nodes: list[dict[str, Any]] = [
        {"name": node.name, "status": node.status, "reason": node.reason} for node in unanswered
    ]
    for name, outcome in result.outcomes.items():
        nodes.append(
            {
                "name": name,
                "status": "ok" if outcome.ok else "refused" if outcome.refused else "failed",
                "reason": outcome.refused,
                "changed": outcome.changed,
                **({"compiled": outcome.compiled} if outcome.compiled else {}),
                "failed": outcome.failed,
                "rebooted": name in result.rebooted,
                "reboot_needed": name in result.reboot_needed,
            }
        )
    return {
        "schema": "gpuprov.apply/1",
        "finished_at": now(),
        "run": run,
        "nodes": nodes,
        "verification": verdict.document() if verdict else None,
    }
