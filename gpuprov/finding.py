"""A finding: what a reading of a node's own words means, with the rule that says so."""

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
        level: `ok` as it should be, `warn` slower or odder than it need be, `bad` not what was expected.
        rule: dotted name of the rule that spoke (`intra.p2p`); stable, for filters and tests.
        text: the sentence for people, with the likely reasons.
    """

    level: Level
    rule: str
    text: str

    def as_dict(self) -> dict[str, str]:
        """Plain data for JSON."""
        return asdict(self)


def worst_level(findings: Iterable[Finding]) -> Level:
    """The level that speaks for all of them; `ok` when there are none."""
    return max((finding.level for finding in findings), key=_ORDER.index, default="ok")
