"""Constructors of findings: a level, and a finding with the catalog's citation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gpuprov.locking.resolve.answer import RuleFinding
from gpuprov.locking.resolve.case import Case

Level = Literal["reason", "warning", "violation"]
Ruling = tuple[Level, RuleFinding]
Findings = Iterator[Ruling]


def reason(case: Case, rule: str, text: str, *source: str) -> Ruling:
    """Return a finding that explains a choice."""
    return "reason", RuleFinding(rule, text, case.catalog.cite(*source))


def warning(case: Case, rule: str, text: str, *source: str) -> Ruling:
    """Return a finding about a stack that works within limits."""
    return "warning", RuleFinding(rule, text, case.catalog.cite(*source))


def violation(case: Case, rule: str, text: str, *source: str) -> Ruling:
    """Return a finding about a stack that cannot work, or is documented not to."""
    return "violation", RuleFinding(rule, text, case.catalog.cite(*source))
