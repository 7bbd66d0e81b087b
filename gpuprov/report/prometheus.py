"""A textfile for Prometheus's node exporter: results of a drift run, and its time."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import get_args

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from gpuprov.drift.judge import Status
from gpuprov.errors import InvalidInput
from gpuprov.history import Run


def write_textfile(run: Run, path: Path) -> None:
    """Write the metrics of a run in one step, as the textfile collector requires.

    Raises:
        InvalidInput: the file cannot be written.
    """
    try:
        write_to_textfile(str(path), _registry(run))
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}", do="name a writable folder") from None


def _registry(run: Run) -> CollectorRegistry:
    """Return the metrics of a run: nodes by status, each node's result, each check that differs, versions
    that security bulletins concern, and the time.
    """
    registry = CollectorRegistry()
    nodes = Gauge("gpuprov_nodes", "Nodes by result of the run.", ["status"], registry=registry)
    counts = Counter(node.status for node in run.nodes)
    for status in get_args(Status):
        nodes.labels(status).set(counts[status])
    up = Gauge("gpuprov_node_in_sync", "1 if nothing differs from the lock.", ["node"], registry=registry)
    reached = Gauge(
        "gpuprov_node_answered", "1 if the facts of the node were read.", ["node"], registry=registry
    )
    differs = Gauge(
        "gpuprov_check_differs",
        "1 for each check that differs; other checks have no series.",
        ["node", "check", "severity"],
        registry=registry,
    )
    for node in run.nodes:
        up.labels(node.name).set(node.status == "in_sync")
        reached.labels(node.name).set(node.reason is None)
        for each in node.drift:
            differs.labels(node.name, each.check, each.severity).set(1)
    affected = Gauge(
        "gpuprov_node_affected",
        "Number of security bulletins that concern a version of the node.",
        ["node", "component", "version"],
        registry=registry,
    )
    for note in run.notes:
        affected.labels(note.node, note.component, note.version).set(len(note.bulletins))
    at = Gauge("gpuprov_checked_timestamp_seconds", "Time of the run.", registry=registry)
    at.set(datetime.fromisoformat(run.at).timestamp())
    return registry
