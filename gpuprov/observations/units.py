"""Readings that several areas share: systemd units."""

from __future__ import annotations

from gpuprov.facts import Facts


def enabled(facts: Facts, unit: str) -> str:
    """`enabled` when it starts at boot and has started now, `enabled, but …` when it has not; otherwise
    `disabled`, another state in systemd's words, or `not installed`.
    """
    known = facts.units.get(unit)
    if known is None or not known.exists:
        return "not installed"
    if not known.enabled:
        return known.file_state or "disabled"
    return "enabled" if known.active or known.starting else f"enabled, but {known.active_state}"
