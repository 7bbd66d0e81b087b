"""How a check speaks: a level and a finding with the catalog's citation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gpuprov.locking.resolve.answer import Finding
from gpuprov.locking.resolve.case import Case

Level = Literal["reason", "warning", "violation"]
Said = tuple[Level, Finding]
Findings = Iterator[Said]


def reason(case: Case, rule: str, text: str, *source: str) -> Said:
    """Why something is as it is."""
    return "reason", Finding(rule, text, case.catalog.cite(*source))


def warning(case: Case, rule: str, text: str, *source: str) -> Said:
    """Works, within limits."""
    return "warning", Finding(rule, text, case.catalog.cite(*source))


def violation(case: Case, rule: str, text: str, *source: str) -> Said:
    """Cannot work, or is documented not to."""
    return "violation", Finding(rule, text, case.catalog.cite(*source))
