"""Maintenance windows."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from gpuprov.model.rollout import DAYS, Window


def is_open(window: Window | None, now: datetime) -> bool:
    """Return whether nodes may move at a time (with time zone); always without a window.

    `end` is excluded. A window over midnight belongs to the day on which it begins.
    """
    if window is None:
        return True
    there = now.astimezone(ZoneInfo(window.zone))
    clock = there.strftime("%H:%M")
    today, yesterday = DAYS[there.weekday()], DAYS[(there - timedelta(days=1)).weekday()]
    if window.start <= window.end:
        return today in window.days and window.start <= clock < window.end
    return (today in window.days and clock >= window.start) or (
        yesterday in window.days and clock < window.end
    )


def describe_window(window: Window) -> str:
    """Return a window as text: `sat, sun 22:00 to 04:00 (UTC)`."""
    return f"{', '.join(window.days)} {window.start} to {window.end} ({window.zone})"
