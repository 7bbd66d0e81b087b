"""Records of the vendor's security bulletins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuprov.catalog.records.hardware import Sources
from gpuprov.catalog.version import Version

Exposed = Literal["driver", "fabricmanager", "imex", "cuda", "cudnn", "nccl", "container_toolkit", "dcgm"]
"""Components of a lock that bulletins of the vendor concern, by their names in the lock."""
OF_A_BRANCH: tuple[Exposed, ...] = ("driver", "fabricmanager", "imex")
"""Components whose versions begin with the branch of the driver, and are fixed in each branch separately."""
Severity = Literal["low", "medium", "high", "critical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectedRange:
    """Affected versions of one component, as a row of a bulletin's table states them.

    All versions below `fixed` are affected, from `first` on if it is stated. Without `fixed` the vendor names
    no fix, and versions up to `last` are affected, or all of them.
    """

    component: Exposed
    branch: int | None = None
    """The driver's branch, for components of `OF_A_BRANCH` only."""
    first: Version | None = None
    last: Version | None = None
    """The newest version that the vendor names as affected."""
    fixed: Version | None = None
    cves: tuple[str, ...] = ()
    """The CVEs that the row is about; empty: all of the bulletin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulletin:
    """One security bulletin, as far as it concerns Linux hosts and components of a lock."""

    id: str
    title: str
    published: str
    updated: str | None = None
    revision: str | None = None
    score: float
    """Highest CVSS base score of its CVEs."""
    cves: tuple[str, ...]
    affected: tuple[AffectedRange, ...]
    note: str = ""
    source: Sources

    @property
    def severity(self) -> Severity:
        """The qualitative rating of the score, by the scale of CVSS 3.1, section 5."""
        if self.score >= 9:
            return "critical"
        return "high" if self.score >= 7 else "medium" if self.score >= 4 else "low"
