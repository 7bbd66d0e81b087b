"""Report of an image: changes, verification, and checks postponed to the first boot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpuprov.errors import Exit, worst
from gpuprov.files.runs import now
from gpuprov.untrusted import on_one_line

if TYPE_CHECKING:
    from gpuprov.apply.image import Image
    from gpuprov.verify.verdict import Verdict


def image_lines(image: Image, verdict: Verdict | None, waiting: dict[str, list[str]]) -> Iterator[str]:
    """Yield one line of the result, then the postponed checks and roles; of a failed image only that line.

    Args:
        verdict: result of the verification; None if the image was not verified.
        waiting: reason → postponed checks.
    """
    if not image.outcome.ok:
        failures = image.outcome.failed or [{"msg": image.outcome.unreachable}]
        why = "; ".join(
            f"{role}: {each['msg']}" if (role := each.get("role")) else f"{each['msg']}" for each in failures
        )
        yield on_one_line(f"image  changed={image.outcome.changed}  FAILED  {why}")
        return
    wrong = [check.check for node in verdict.nodes for check in node.failed_checks] if verdict else []
    seen = (
        f"NOT VERIFIED  {', '.join(wrong)}"
        if wrong
        else f"verified ({shown(verdict)} checks)"
        if verdict
        else ""
    )
    yield f"image  changed={image.outcome.changed}  {seen}".rstrip()
    yield from waiting_lines(waiting)
    for role, what in image.roles.items():
        yield f"  the role {role} waits for {what}"


def waiting_lines(waiting: dict[str, list[str]]) -> Iterator[str]:
    """Yield the number of postponed checks, then the checks of each reason."""
    yield f"left for the first boot: {sum(map(len, waiting.values()))} checks"
    for what, checks in waiting.items():
        yield f"  {what}: {', '.join(checks)}"


def shown(verdict: Verdict | None) -> int:
    """Return the number of judged checks; 0 without a verification."""
    return sum(len(node.checks) for node in verdict.nodes) if verdict else 0


def image_exit(image: Image, verdict: Verdict | None) -> Exit:
    """Return the exit code for an image: the worse of its own and the verification's."""
    return worst(Exit.OK if image.outcome.ok else Exit.FAILED, verdict.exit_code if verdict else Exit.OK)


def image_document(
    run: str, image: Image, verdict: Verdict | None, waiting: dict[str, list[str]]
) -> dict[str, Any]:
    """Return a document with schema gpuprov.image/1: the result, what the first boot does, and the
    verification.
    """
    return {
        "schema": "gpuprov.image/1",
        "finished_at": now(),
        "run": run,
        "status": "ok" if image.outcome.ok else "failed",
        "changed": image.outcome.changed,
        "failed": image.outcome.failed,
        "first_boot": {"checks": waiting, "roles": image.roles},
        "verification": verdict.document() if verdict else None,
    }
