"""Findings: conclusions from the output of a node, each with its rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from heapq import nlargest
from typing import Literal

Level = Literal["ok", "warn", "bad"]
_ORDER: tuple[Level, ...] = ("ok", "warn", "bad")
FINDINGS = 256
"""Maximum number of findings from one text or document: the 56 pairs of eight GPUs under four rules."""
CHARACTERS = 1000
"""Maximum number of characters in the text of a finding, which can repeat one text of a node's answer."""


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


def shortened(text: str) -> str:
    """Return a text of at most `CHARACTERS`; the end of a longer one is replaced by an ellipsis."""
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"


def limited(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings in their order, with texts of at most `CHARACTERS`; of more than `FINDINGS`, the
    worst ones, and one more that counts the others.
    """
    left: Counter[Level] = Counter()

    def short() -> Iterator[Finding]:
        for found in findings:
            left[found.level] += 1
            yield replace(found, text=shortened(found.text))

    kept = nlargest(FINDINGS, enumerate(short()), key=lambda numbered: _ORDER.index(numbered[1].level))
    left -= Counter(found.level for _, found in kept)
    more = Finding(_worst(left), "findings.more", f"{left.total()} more findings")
    return [*(found for _, found in sorted(kept)), *([more] if left else [])]


def worst_level(findings: Iterable[Finding]) -> Level:
    """Return the worst level of the findings; `ok` without findings."""
    return _worst(finding.level for finding in findings)


def _worst(levels: Iterable[Level]) -> Level:
    """Return the worst of the levels; `ok` without levels."""
    return max(levels, key=_ORDER.index, default="ok")
