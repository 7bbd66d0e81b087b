"""Time of an apply by role: Ansible's tasks, and the time outside of tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Cost:
    """Tasks of one role in one play, and seconds from their start to their result; skipped ones apart."""

    tasks: int = 0
    skipped: int = 0
    seconds: float = 0.0
    skipping: float = 0.0


def costs(events: list[Path]) -> dict[str, Cost]:
    """Return role → cost of its tasks on one node, from the event files of a run."""
    found: dict[str, Cost] = {}
    for path in events:
        for event in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if event["event"] != "task":
                continue
            cost = found.setdefault(event["role"] or "(play)", Cost())
            if event["status"] == "skipped":
                cost.skipped += 1
                cost.skipping += event["seconds"] or 0
            else:
                cost.tasks += 1
                cost.seconds += event["seconds"] or 0
    return found


def dearest(events: list[Path], count: int = 8) -> Iterator[str]:
    """Yield a line for each of the tasks with the most seconds, from the event files of a run."""
    tasks = [
        event
        for path in events
        for event in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if event["event"] == "task"
    ]
    for event in sorted(tasks, key=lambda event: -(event["seconds"] or 0))[:count]:
        yield f"{event['seconds']:>6.2f}  {event['role'] or '(play)'}: {event['task']}"


def table(found: dict[str, Cost], whole: float) -> Iterator[str]:
    """Yield a table's lines, the most expensive role first; `whole` is the run's wall time in seconds."""
    yield f"{'role':<22}{'tasks':>6}{'s':>8}{'skipped':>9}{'s':>7}"
    for role, cost in sorted(found.items(), key=lambda item: -item[1].seconds):
        yield f"{role:<22}{cost.tasks:>6}{cost.seconds:>8.2f}{cost.skipped:>9}{cost.skipping:>7.2f}"
    tasks, skipped = (sum(getattr(each, name) for each in found.values()) for name in ("tasks", "skipped"))
    inside = sum(each.seconds + each.skipping for each in found.values())
    yield f"{'in tasks':<22}{tasks:>6}{inside:>8.2f}{skipped:>9}"
    yield f"{'outside of tasks':<22}{'':>6}{whole - inside:>8.2f}"
