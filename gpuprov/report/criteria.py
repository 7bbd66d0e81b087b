"""Criteria of a list, judged by what this controller has recorded of a fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from gpuprov.accept.rates import COLLECTIVES, OF_GPU
from gpuprov.drift.judge import NodeDrift
from gpuprov.errors import InvalidInput
from gpuprov.history.ledger import Event
from gpuprov.model.documents import Strict, parse_document, read_document
from gpuprov.model.nodeset import fold
from gpuprov.report.table import aligned

SCHEMA = "gpuprov.criteria/1"
PUBLIC = "public"
"""Name of the shipped list."""
DAYS = 31
"""Days after which a result is no evidence any more (our choice)."""
Result = Literal["pass", "fail", "no evidence", "not our layer"]
HEAD = ("CRITERION", "RESULT", "VALUE", "COMMAND")


class Criterion(Strict):
    """One criterion, with exactly one kind of evidence.

    Attributes:
        checks: checks of verify, or else of drift, that must hold on every node.
        rules: rules of the doctor that must judge, and find nothing, on every node.
        measured: measurements of accept that must be made, and neither be slow nor wrong, on every node.
        accepted_days: days in which every node must have passed accept.
        not_ours: why no state of nodes answers it.
    """

    id: str = Field(pattern=r"^[a-z0-9_.-]{1,64}$")
    text: str
    source: str
    checks: list[str] = Field(default=[])
    rules: list[str] = Field(default=[])
    measured: list[str] = Field(default=[])
    accepted_days: int | None = Field(default=None, ge=1)
    not_ours: str = ""

    @model_validator(mode="after")
    def _one_kind(self) -> Criterion:
        """Return the criterion; raise ValueError unless it has exactly one kind of evidence."""
        kinds = (self.checks, self.rules, self.measured, self.accepted_days, self.not_ours)
        if sum(bool(kind) for kind in kinds) != 1:
            raise ValueError("exactly one of checks, rules, measured, accepted_days and not_ours")
        return self


class Criteria(Strict):
    """A list of criteria."""

    title: str
    criteria: list[Criterion] = Field(min_length=1)


Newest = Mapping[str, tuple[str, tuple[str, ...], NodeDrift]]
"""Node → time, judged checks and result of its newest run of a verb."""


@dataclass(frozen=True)
class Evidence:
    """Records of a fleet.

    Attributes:
        nodes: all nodes of the lock.
        runs: verb → newest results of nodes.
        events: the ledger of the fleet.
    """

    nodes: Sequence[str]
    runs: Mapping[str, Newest]
    events: Sequence[Event] = ()


@dataclass(frozen=True)
class Judged:
    """A criterion with its result, the value that was found, and the command that shows it."""

    id: str
    text: str
    source: str
    result: Result
    value: str
    command: str


def read_criteria(name: str) -> Criteria:
    """Return the shipped list for `public`, otherwise that of a file.

    Raises:
        InvalidInput: the file cannot be read or has another form, or two criteria have the same id.
    """
    if name == PUBLIC:
        text = (files("gpuprov.report") / "data/criteria.yml").read_text("utf-8")
        found = parse_document(text, Criteria, name=PUBLIC)
    else:
        found = read_document(Path(name), Criteria, missing=f"name a file, or {PUBLIC} for the shipped list")
    count = Counter(each.id for each in found.criteria)
    if double := {each for each, number in count.items() if number > 1}:
        raise InvalidInput(f"{name}: {', '.join(sorted(double))} twice", expected="each id once")
    return found


def judge_criteria(stated: Criteria, seen: Evidence, now: datetime | None = None) -> list[Judged]:
    """Return the result of each criterion, in their order.

    `pass` needs a result of every node from the last `DAYS` days, else it is `no evidence`. A failure counts
    at any age, and a node without a recent load test fails `accepted_days`.

    Args:
        now: the present time in UTC, by default the clock's.
    """
    moment = now or datetime.now(UTC)
    return [_judged(each, seen, moment) for each in stated.criteria]


def _judged(each: Criterion, seen: Evidence, now: datetime) -> Judged:
    """Return the result of one criterion, with the command that gives its evidence: checks of drift or
    verification, rules of the doctor, measured rates, or an acceptance within its days.
    """
    since = (now - timedelta(days=DAYS)).isoformat()
    if each.not_ours:
        found: tuple[Result, str, str] = ("not our layer", each.not_ours, "-")
    elif each.checks:
        verb = "verify" if _any_judged(seen.runs.get("verify", {}), each.checks) else "drift"
        found = *_all_hold(each.checks, seen, verb, since), f"gpuprov {verb}"
    elif each.rules:
        found = *_all_hold(each.rules, seen, "doctor", since), "gpuprov doctor --all"
    elif each.measured:
        slow = [f"{name}.slow" for name in each.measured]
        void = set().union(*map(_void_by, each.measured))
        found = *_all_hold(slow, seen, "accept", since, void), "gpuprov accept"
    else:
        days = each.accepted_days or 1
        found = *_accepted(seen, (now - timedelta(days=days)).isoformat()), "gpuprov schedule accept"
    result, value, command = found
    return Judged(each.id, each.text, each.source, result, value, command)


def _void_by(measure: str) -> set[str]:
    """Return the first words of the rules of accept by which a measurement counts for nothing: its own, those
    of its step and of GPUs that were not measured, and that of faults which the result leaves out.
    """
    step = OF_GPU[measure].place if measure in OF_GPU else (measure.partition("_")[0],)
    return {measure, *step, "device", "findings", *(["nccl"] if measure in COLLECTIVES else [])}


def _any_judged(newest: Newest, checks: Sequence[str]) -> bool:
    """Return whether some node's newest result judged all of the checks."""
    return any(set(checks) <= set(judged) for _, judged, _ in newest.values())


def _all_hold(
    checks: Sequence[str], seen: Evidence, verb: str, since: str, void: Collection[str] = ()
) -> tuple[Result, str]:
    """Return `fail` if a check, or one whose first word is in `void`, differs in the newest result of a node,
    however old; `no evidence` if a node has no complete result since `since` (ISO 8601, UTC); else `pass`;
    and a text that names the nodes.
    """
    newest = seen.runs.get(verb, {})
    bad, blind = dict[str, list[str]](), []
    for node in seen.nodes:
        at, judged, result = newest.get(node, ("", (), NodeDrift(node, "error")))
        differing = [each.check for each in result.drift]
        if wrong := [name for name in differing if name in checks or name.partition(".")[0] in void]:
            bad[node] = wrong
        elif at < since or result.reason is not None or not set(checks) <= set(judged):
            blind.append(node)
    if bad:
        names = sorted({check for wrong in bad.values() for check in wrong})
        return "fail", f"{len(bad)} of {len(seen.nodes)} nodes: {fold(bad)} {', '.join(names)}"
    if blind:
        return (
            "no evidence",
            f"{len(blind)} of {len(seen.nodes)} nodes without a recent result: {fold(blind)}",
        )
    return "pass", f"{len(seen.nodes)} of {len(seen.nodes)} nodes"


def _accepted(seen: Evidence, since: str) -> tuple[Result, str]:
    """Return `fail` if a node's last load test failed, however old, or it was before `since` (ISO 8601, UTC);
    else `pass`; and a text that names the nodes.
    """
    last: dict[str, Event] = {}
    for event in seen.events:
        if event.kind in ("accepted", "rejected"):
            last[event.node] = event
    rejected = [node for node in seen.nodes if node in last and last[node].kind == "rejected"]
    late = [node for node in seen.nodes if node not in last or last[node].at < since]
    count = len(seen.nodes)
    if rejected:
        return "fail", f"{len(rejected)} of {count} nodes rejected: {fold(rejected)}"
    if late:
        return "fail", f"{count - len(late)} of {count} nodes tested since {since[:10]}; not {fold(late)}"
    return "pass", f"{count} of {count} nodes tested since {since[:10]}"


def criteria_lines(title: str, found: Sequence[Judged]) -> Iterator[str]:
    """Yield the title, a table of the criteria, and a line with the number of each result that occurs."""
    yield title
    yield from aligned([HEAD, *([each.id, each.result, each.value, each.command] for each in found)])
    yield ", ".join(f"{count} {result}" for result, count in _counts(found).items() if count)


def criteria_document(title: str, found: Sequence[Judged], nodes: int) -> dict[str, Any]:
    """Return a document of the schema gpuprov.criteria/1."""
    criteria = [asdict(each) for each in found]
    return {"schema": SCHEMA, "title": title, "nodes": nodes, "counts": _counts(found), "criteria": criteria}


def _counts(found: Sequence[Judged]) -> dict[str, int]:
    """Return result → number of criteria, also 0."""
    results: tuple[Result, ...] = ("pass", "fail", "no evidence", "not our layer")
    return {result: sum(each.result == result for each in found) for result in results}
