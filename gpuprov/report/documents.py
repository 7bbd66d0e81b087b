"""Drift and plans as JSON documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from gpuprov.apply.plan import NodePlan
from gpuprov.drift.judge import NodeDrift
from gpuprov.drift.security import SecurityNote
from gpuprov.files.runs import now


def drift_document(
    nodes: Iterable[NodeDrift], checked_at: str | None = None, notes: Iterable[SecurityNote] = ()
) -> dict[str, Any]:
    """Return a document with schema gpuprov.drift/1.

    Args:
        checked_at: time of the survey; by default the current time.
        notes: versions that security bulletins concern; without any, the document has no `security`.
    """
    listed = [_without_none(asdict(node), "reason", "held") for node in nodes]
    summary = Counter(node["status"] for node in listed)
    security = [asdict(note) for note in notes]
    return {
        "schema": "gpuprov.drift/1",
        "checked_at": checked_at or now(),
        "nodes": listed,
        "summary": {status: summary[status] for status in ("in_sync", "drifted", "unreachable", "error")},
        **({"security": security} if security else {}),
    }


def plan_document(plans: Iterable[NodePlan], unanswered: Iterable[NodeDrift]) -> dict[str, Any]:
    """Return a document with schema gpuprov.plan/1: the plan of each node, and the nodes without facts."""
    return {
        "schema": "gpuprov.plan/1",
        "planned_at": now(),
        "nodes": [asdict(plan) for plan in plans],
        "unanswered": [
            {"name": node.name, "status": node.status, "reason": node.reason} for node in unanswered
        ],
    }


def _without_none(record: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Return the record without those of `keys` whose value is None."""
    return {name: each for name, each in record.items() if name not in keys or each is not None}
