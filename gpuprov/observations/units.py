"""Readings that several areas share: systemd units."""

from __future__ import annotations

from gpuprov.facts import Facts


def enabled(facts: Facts, unit: str) -> str:
    """`enabled`, `disabled`, another state in systemd's words, or `not installed`."""
    known = facts.units.get(unit)
    if known is None or not known.exists:
        return "not installed"
    return "enabled" if known.enabled else known.file_state or "disabled"
