"""Limits of login sessions, from limits.conf(5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PamLimit:
    """One line: `* soft memlock unlimited`. `kind` is `soft`, `hard` or `-` for both."""

    path: str
    domain: str
    kind: str
    item: str
    value: str


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Limits for logins (pam_limits) and for units (systemd's defaults, in systemd's own words)."""

    pam: tuple[PamLimit, ...]
    systemd: Mapping[str, str]
    """`DefaultLimitMEMLOCK` → `8388608` or `infinity`."""


def parse_pam(rows: list[list[str]]) -> Iterator[PamLimit]:
    """Rows of path and line, in the order in which pam_limits reads them; the last one for an item counts."""
    for path, line in rows:
        words = line.partition("#")[0].split()
        if len(words) == 4:
            yield PamLimit(path, *words)
