"""Parser of limits of login sessions, from limits.conf(5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PamLimit:
    """One line: `* soft memlock unlimited`. `kind` is `soft`, `hard` or `-` for both."""

    place: str
    """`path:line`."""
    domain: str
    kind: str
    item: str
    value: str


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Limits for logins (pam_limits) and for units (systemd's defaults, in systemd's format)."""

    pam: tuple[PamLimit, ...]
    systemd: Mapping[str, str]
    """`DefaultLimitMEMLOCK` → `8388608` or `infinity`."""
    systemd_places: Mapping[str, str]
    """`DefaultLimitMEMLOCK` → `path:line` of the line that decides it."""


def parse_pam(rows: list[list[str]]) -> Iterator[PamLimit]:
    """Parse rows of place and line, in the order of pam_limits; the last one for an item counts."""
    for place, line in rows:
        words = line.partition("#")[0].split()
        if len(words) == 4:
            yield PamLimit(place, *words)
