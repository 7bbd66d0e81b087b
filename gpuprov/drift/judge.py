"""Drift: the expectations that a node's facts contradict."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gpuprov.drift.observations import OBSERVERS
from gpuprov.drift.observations.registry import NAMERS
from gpuprov.errors import Exit, GpuprovError, Unreachable, worst
from gpuprov.finding import shortened
from gpuprov.probe.facts import Facts, Missing
from gpuprov.probe.parse.state import Holding
from gpuprov.roles import Expectation, Severity
from gpuprov.ssh.contained import contained
from gpuprov.untrusted.parsing import printable_value

Status = Literal["in_sync", "drifted", "unreachable", "error"]
EXIT_OF: dict[Status, Exit] = {
    "in_sync": Exit.OK,
    "drifted": Exit.DRIFT,
    "unreachable": Exit.UNREACHABLE,
    "error": Exit.FAILED,
}


UNREAD = "unknown: "
"""Begin of an actual value that could not be read."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One expectation that does not hold; of mappings and lists only the items that differ.

    `by` is the place that sets the actual value, `path:line`, if the facts show it.

    An actual value that cannot be printed is replaced by the reason.
    """

    check: str
    expected: Any
    actual: Any
    severity: Severity
    role: str | None
    reboot: bool
    by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Replace an actual value that cannot be printed: one node must not end the report of all."""
        object.__setattr__(self, "actual", printable_value(self.actual))

    @property
    def unread(self) -> bool:
        """Whether the actual value could not be read; it is then the reason."""
        return str(self.actual).startswith(UNREAD)


@dataclass(frozen=True, slots=True)
class NodeDrift:
    """One node's result. `reason` explains missing facts, and is None if there are facts.

    `held` is the run that changes the node while it was read; it is not recorded in the history.
    """

    name: str
    status: Status
    drift: tuple[Difference, ...] = ()
    reason: str | None = None
    held: Holding | None = field(default=None, compare=False)


def judge(name: str, facts: Facts, expected: Iterable[Expectation]) -> NodeDrift:
    """Compare one node's facts with its expectations; its status is `in_sync` without a difference."""
    found = tuple(difference for each in expected if (difference := _difference(each, facts)))
    return NodeDrift(name, "drifted" if found else "in_sync", found, held=_held(facts))


def _held(facts: Facts) -> Holding | None:
    """Return how long a run has held the node; None if none does, or it is not known."""
    try:
        return facts.holding if facts.holding.lease_s or facts.holding.armed_s else None
    except Missing:
        return None


def judge_answer(name: str, answer: Facts | GpuprovError, expected: Iterable[Expectation]) -> NodeDrift:
    """Judge a node's answer: facts, or the error; facts that cannot be read are an error too."""
    if not isinstance(answer, Facts):
        return without_facts(name, answer)
    judged = contained(name, lambda: judge(name, answer, expected))
    return without_facts(name, judged) if isinstance(judged, GpuprovError) else judged


def without_facts(name: str, error: GpuprovError) -> NodeDrift:
    """Return the result of a node without facts: `unreachable` or `error`, with the reason."""
    status: Status = "unreachable" if isinstance(error, Unreachable) else "error"
    return NodeDrift(name, status, reason=shortened(str(error)))


def exit_code(nodes: Iterable[NodeDrift]) -> Exit:
    """Return the worst exit code of the nodes."""
    return worst(*(EXIT_OF[node.status] for node in nodes))


def _difference(expectation: Expectation, facts: Facts) -> Difference | None:
    """Return the difference of an expectation from the facts, None if it holds.

    Missing facts are a difference too; if the driver does not answer, only a reboot can correct it.
    """
    role, reboot = expectation.role, expectation.reboot
    by: tuple[str, ...] = ()
    try:
        actual = OBSERVERS[expectation.check](facts, expectation)
    except Missing as missing:
        expected, actual = expectation.expected, f"{UNREAD}{missing.reason}"
        if expectation.needs_driver and facts.smi.error:
            role, reboot = None, True  # nothing can be set or read until the driver answers
    else:
        if actual == expectation.expected:
            return None
        expected, actual = differing(expectation.expected, actual)
        by = _named(replace(expectation, expected=expected), facts)
    return Difference(expectation.check, expected, actual, expectation.severity, role, reboot, by)


def _named(expectation: Expectation, facts: Facts) -> tuple[str, ...]:
    """Return the places that set the differing values, each once; empty if they are not known."""
    namer = NAMERS.get(expectation.check)
    try:
        return tuple(dict.fromkeys(filter(None, namer(facts, expectation)))) if namer else ()
    except Missing:
        return ()


def differing(expected: Any, actual: Any) -> tuple[Any, Any]:
    """Return the parts of two values that differ: keys of mappings, members of lists, otherwise all.

    The result is a pair: the expected part, and the actual part.
    """
    if isinstance(expected, dict) and isinstance(actual, dict):
        keys = [key for key in {**expected, **actual} if expected.get(key) != actual.get(key)]
        return {key: expected.get(key) for key in keys}, {key: actual.get(key) for key in keys}
    if isinstance(expected, list) and isinstance(actual, list):
        return _without(expected, actual), _without(actual, expected)
    return expected, actual


def _without(items: list[Any], others: list[Any]) -> list[Any]:
    """Return the items that are not among the others; in linear time if all others can be hashed."""
    try:
        known: Collection[Any] = set(others)
        return [item for item in items if item not in known]
    except TypeError:
        return [item for item in items if item not in others]
