"""A fault of a machine, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from gpuprov.finding import CHARACTERS, shortened
from gpuprov.untrusted import ShellLine, shell

if TYPE_CHECKING:
    from gpuprov.doctor.examination import Examination

Severity = Literal["broken", "degraded", "risk", "hint"]
SEVERITIES: tuple[Severity, ...] = ("broken", "degraded", "risk", "hint")
"""Levels: no GPU work or wrong results; slower than necessary; works now but may fail; information."""
Class = Literal["isolate", "reset", "watch", "none"]
CLASSES: tuple[Class, ...] = ("isolate", "reset", "watch", "none")
"""Consequences for a node of a cluster: no job may start; no job may start, and a reset of the GPU corrects
it; someone has to look at it, and jobs continue; none.
"""
CONSEQUENCES: Mapping[Severity, Class] = {
    "broken": "isolate",
    "degraded": "watch",
    "risk": "watch",
    "hint": "none",
}
"""Severity → the class of a fault whose rule states no other."""
OF_USERS: tuple[Class, ...] = ("watch", "none")
"""Classes of faults whose evidence a user of the node can choose: for others, one user with a variable or a
message would take the node from all.
"""
FAULTS = 64
"""Maximum number of faults of one rule on one node: of eight GPUs with eight faults each."""
LINES = 16
"""Maximum numbers of a fault's values and of its actions."""


@dataclass(frozen=True)
class Fault:
    """A fault, with its evidence and remedy.

    Args:
        severity: see `SEVERITIES`.
        text: the fault on one line, with its values.
        seen: values read, each with its place: `/proc/driver/nvidia/version: 535.309.01`.
        cause: why it occurs, or why it matters.
        mend: commands or actions, a line each; empty if nothing on the machine can correct it.
        keep: the setting in fleet.yml that prevents it.
        urgent: it comes first among faults of its severity.
        rule: name of the rule; set by `judge`.
        source: sources of the rule; set by `judge`.
        follows: rules whose faults explain this one; set by `judge`.
        health: its class in `CLASSES`, if it is not that of the rule for its severity; set by `judge`.
        by_users: whether a user of the node can choose all its evidence: variables and limits of programs,
            names, files in homes, messages about programs. Its class is then at most `watch`.
    """

    severity: Severity
    text: str
    seen: tuple[str, ...] = ()
    cause: str = ""
    mend: tuple[ShellLine, ...] = ()
    keep: str = ""
    urgent: bool = False
    rule: str = ""
    source: str = ""
    follows: tuple[str, ...] = ()
    health: Class | None = None
    by_users: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; `by_users` is part of `health`."""
        return {name: value for name, value in asdict(self).items() if name != "by_users"}


Predicate = Callable[["Examination"], Iterator[Fault]]


@dataclass(frozen=True)
class Rule:
    """One rule: a predicate and its description.

    Args:
        name: dotted, stable, for filters and tests: `driver.mismatch`.
        rows: of `data/faults.json`, which it recognises.
        source: its sources, by id of `data/faults.json`.
        after: rules whose faults explain those of this one.
        health: severity → class of its faults.
    """

    name: str
    predicate: Predicate
    rows: tuple[str, ...]
    source: tuple[str, ...]
    after: tuple[str, ...] = ()
    health: Mapping[Severity, Class] = field(default_factory=lambda: CONSEQUENCES)


def class_of(fault: Fault, rule: Rule) -> Class:
    """Return the class of a rule's fault; one by users is at most watched."""
    stated = fault.health or rule.health[fault.severity]
    return "watch" if fault.by_users and stated not in OF_USERS else stated


RULES: dict[str, Rule] = {}
"""Rules by name, in the order of their definition."""


OF_GPUS = (
    *("bus", "refused", "module", "board", "guests", "firmware", "driver", "access", "errors", "readings"),
    *("memory", "fabric", "switches", "cuda"),
)
"""Concerns of whose rules each has to judge, or a node is neither healthy nor mended. A user of the node can
keep them from it only by messages of the kernel without end; the others are about programs, the host and its
software.
"""


def is_of_gpus(name: str) -> bool:
    """Return whether a rule, or a concern that could not be imported, is one of `OF_GPUS`."""
    if name not in RULES:
        return name in OF_GPUS
    return RULES[name].predicate.__module__.rpartition(".")[2] in OF_GPUS


def rule(
    name: str,
    *rows: str,
    source: str,
    after: tuple[str, ...] = (),
    health: Mapping[Severity, Class] | None = None,
) -> Callable[[Predicate], Predicate]:
    """Register a predicate as a rule.

    Args:
        rows: of `data/faults.json`.
        source: ids of sources there, separated by blanks.
        after: rules whose faults explain those of this one; such a fault is listed after them.
        health: severity → class of its faults, where it is not that of `CONSEQUENCES`.
    """

    def enter(predicate: Predicate) -> Predicate:
        assert name not in RULES, name  # noqa: S101
        classes = {**CONSEQUENCES, **(health or {})}
        RULES[name] = Rule(name, predicate, rows, tuple(source.split()), after, classes)
        return predicate

    return enter


def limited(faults: Iterable[Fault]) -> list[Fault]:
    """Return the first `FAULTS` faults, shortened to `LINES` and `CHARACTERS`; no further one is made."""
    return [_shortened(fault) for fault in islice(faults, FAULTS)]


def _shortened(fault: Fault) -> Fault:
    """Return a fault with texts of at most `CHARACTERS` and `LINES` lines each; a command that is too long is
    left out, because a part of it would be another command.
    """
    return replace(
        fault,
        text=shortened(fault.text),
        seen=tuple(map(shortened, fault.seen[:LINES])),
        cause=shortened(fault.cause),
        mend=tuple(
            line if len(line) <= CHARACTERS else shell("a command of {} characters, left out", len(line))
            for line in fault.mend[:LINES]
        ),
        keep=shortened(fault.keep),
    )


def listed(things: list[str], most: int = 4) -> str:
    """Return the things with commas, at most `most` of them: `a, b, c, d and 5 more`."""
    more = len(things) - most
    return ", ".join(things[:most]) + (f" and {more} more" if more > 0 else "")
