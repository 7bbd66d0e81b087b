"""One verdict from the remembered faults and from what could not be judged, as the document for readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from gpuprov.health.memory import DRAINING, Memory, Remembered

SCHEMA = "gpuprov.health/1"
VALID = 2.5
"""Intervals for which a verdict is valid: after one missed run it still is, after two it is not."""
VALID_LEAST_S = 120.0
Verdict = Literal["isolate", "reset", "unknown", "watch", "healthy"]
VERDICTS: tuple[Verdict, ...] = ("isolate", "reset", "unknown", "watch", "healthy")
"""Verdicts, the worst first. A known fault is worse than something unknown, and that worse than a fault with
which jobs continue.
"""
LISTED = 40
"""Maximum number of reasons in a document."""
TEXT = 140
"""Maximum length of the text if it names other rules: with Slurm's prefix and the rule it fits into 200."""
OTHERS = 3
"""Maximum number of other rules in the text."""


@dataclass(frozen=True)
class Circumstances:
    """Circumstances of a run besides faults.

    Attributes:
        now: seconds since boot.
        at: time of day, ISO 8601.
        boot_id: the kernel's.
        interval, hold: as configured, in seconds.
        reasons: why the node cannot be called healthy: collectors that failed, a stepped clock.
        paused: why faults do not count at the moment; "" if they do.
        unjudged: rule → why it could not judge.
        seconds: duration of the run.
        program: beginning of the program's SHA-256.
    """

    now: float
    at: str
    boot_id: str
    interval: float
    hold: float
    reasons: Sequence[str] = ()
    paused: str = ""
    unjudged: Mapping[str, str] | None = None
    seconds: float = 0.0
    program: str = ""


def valid_for(interval: float) -> float:
    """Return the seconds for which a verdict is valid: `VALID` intervals, and at least `VALID_LEAST_S`."""
    return max(VALID * interval, VALID_LEAST_S)


def conclude(memory: Memory, around: Circumstances) -> dict[str, Any]:
    """Return the document of a run, and keep its verdict in the memory."""
    counting, suspected = memory.counting(), memory.suspected()
    verdict, rule, text = _verdict(counting, suspected, around)
    if verdict != memory.verdict:
        memory.verdict, memory.since = verdict, around.now
    gone = memory.gone_since if memory.gone_since is not None else around.now
    return {
        "schema": SCHEMA,
        "verdict": verdict,
        "rule": rule,
        "text": text,
        "mend": counting[0].mend if counting and counting[0].rule == rule else "",
        "since_s": round(memory.since, 1),
        "at": around.at,
        "boot_id": around.boot_id,
        "uptime_s": round(around.now, 1),
        "valid_s": valid_for(around.interval),
        "lift_s": round(gone + around.hold, 1),
        "interval_s": around.interval,
        "paused": around.paused,
        "reasons": list(around.reasons[:LISTED]),
        "faults": [_row(each) for each in counting],
        "suspected": [_row(each) for each in suspected],
        "unjudged": dict(list((around.unjudged or {}).items())[:LISTED]),
        "seconds": round(around.seconds, 3),
        "program": around.program,
    }


def _verdict(
    counting: Sequence[Remembered], suspected: Sequence[Remembered], around: Circumstances
) -> tuple[Verdict, str, str]:
    """Return the verdict, its rule and its text; rule and text are empty for `healthy`, the rule also for
    other reasons of `unknown`.
    """
    worst = counting[0] if counting else None
    if worst is not None and worst.health in DRAINING:
        verdict: Verdict = "isolate" if any(each.health == "isolate" for each in counting) else "reset"
        return verdict, worst.rule, _with_others(counting)
    if around.reasons:
        return "unknown", "", around.reasons[0]
    serious = [each for each in suspected if each.health in DRAINING]
    if serious:
        why = around.paused or "not confirmed yet"
        return "unknown", serious[0].rule, f"{why}; seen: {serious[0].text}"
    if worst is not None and worst.health == "watch":
        return "watch", worst.rule, _with_others(counting)
    return "healthy", "", ""


def _with_others(counting: Sequence[Remembered]) -> str:
    """Return the text of the first fault, and the rules of the others that have a consequence.

    Slurm's reason and the plugin's message have one line for all of them.
    """
    first = counting[0]
    others = list(dict.fromkeys(each.rule for each in counting if each.health != "none"))
    others.remove(first.rule)
    if not others:
        return first.text
    more = f" and {len(others) - OTHERS} more" if len(others) > OTHERS else ""
    also = f"; also {', '.join(others[:OTHERS])}{more}"
    return first.text[: TEXT - len(also)] + also


def unknown(reason: str, around: Circumstances, memory: Memory) -> dict[str, Any]:
    """Return the document of a run that could not judge: `unknown`, or the verdict of the faults that count
    already, with which no job may start. Otherwise a user who has the runs killed would hide these faults.
    """
    return conclude(memory, replace(around, reasons=[reason]))


def _row(fault: Remembered) -> dict[str, Any]:
    """Return a fault for the document, without what only the memory needs."""
    kept = ("rule", "health", "text", "mend", "first", "last")
    return {name: value for name, value in asdict(fault).items() if name in kept}
