"""A fault of a machine, and the table of rules that know faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from gpuprov.doctor.examination import Examination

Severity = Literal["broken", "degraded", "risk", "hint"]
SEVERITIES: tuple[Severity, ...] = ("broken", "degraded", "risk", "hint")
"""No GPU work or wrong results; slower than it need be; works now and will not always; good to know."""


@dataclass(frozen=True)
class Fault:
    """What is wrong, and what follows from that.

    Args:
        severity: see `SEVERITIES`.
        text: what is wrong, on one line, with its figures.
        seen: what was read, each with its place: `/proc/driver/nvidia/version: 535.309.01`.
        cause: why that is so, or why it matters.
        mend: what to type or to do, a line each; empty where nothing on the machine can mend it.
        keep: what in fleet.yml keeps it mended.
        urgent: it speaks for others of its severity and comes first.
        rule: name of the rule that spoke; set by `judge`.
        source: what the rule rests on; set by `judge`.
        follows: rules whose faults explain this one; set by `judge`.
    """

    severity: Severity
    text: str
    seen: tuple[str, ...] = ()
    cause: str = ""
    mend: tuple[str, ...] = ()
    keep: str = ""
    urgent: bool = False
    rule: str = ""
    source: str = ""
    follows: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


Predicate = Callable[["Examination"], Iterator[Fault]]


@dataclass(frozen=True)
class Rule:
    """One rule: a predicate, and what it stands for.

    Args:
        name: dotted, stable, for filters and tests: `driver.mismatch`.
        rows: of `data/faults.json`, which it recognises.
        source: what it rests on, by id of `data/faults.json`.
        after: rules whose faults explain those of this one.
    """

    name: str
    predicate: Predicate
    rows: tuple[str, ...]
    source: tuple[str, ...]
    after: tuple[str, ...] = ()


RULES: dict[str, Rule] = {}
"""In the order of the questions: on the bus, bound, module, libraries, fabric, errors, speed, host."""


def rule(name: str, *rows: str, source: str, after: tuple[str, ...] = ()) -> Callable[[Predicate], Predicate]:
    """Enter a predicate into the table.

    Args:
        rows: of `data/faults.json`.
        source: ids of sources there, a blank between.
        after: rules whose faults explain those of this one; such a fault is told after them.
    """

    def enter(predicate: Predicate) -> Predicate:
        assert name not in RULES, name  # noqa: S101
        RULES[name] = Rule(name, predicate, rows, tuple(source.split()), after)
        return predicate

    return enter


def listed(things: list[str], most: int = 4) -> str:
    """`a, b, c and 5 more`."""
    more = len(things) - most
    return ", ".join(things[:most]) + (f" and {more} more" if more > 0 else "")
