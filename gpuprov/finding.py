"""Findings: conclusions from the output of a node, each with its rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["ok", "warn", "bad"]
_ORDER: tuple[Level, ...] = ("ok", "warn", "bad")


@dataclass(frozen=True)
class Finding:
    """One sentence of a verdict.

    Attributes:
        level: `ok` as expected, `warn` slower or more unusual than necessary, `bad` not as expected.
        rule: dotted name of the rule (`intra.p2p`); stable, for filters and tests.
        text: the sentence for the operator, with the likely reasons.
    """

    level: Level
    rule: str
    text: str

    def as_dict(self) -> dict[str, str]:
        """Return plain data for JSON."""
        return asdict(self)


def worst_level(findings: Iterable[Finding]) -> Level:
    """Return the worst level of the findings; `ok` without findings."""
    return max((finding.level for finding in findings), key=_ORDER.index, default="ok")
