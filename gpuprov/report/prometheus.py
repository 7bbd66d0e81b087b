"""A textfile for Prometheus's node exporter: results of a run of drift or verify, and its time.

Each series has the label `verb`, so that the files of several verbs have no series in common.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import get_args

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gpuprov.drift.judge import Status
from gpuprov.errors import InvalidInput
from gpuprov.files.writing import replace_file
from gpuprov.history import Run

METRICS = {
    "gpuprov_nodes": ("Nodes by result of the run.", ["verb", "status"]),
    "gpuprov_node_in_sync": ("1 if nothing differs from the lock.", ["verb", "node"]),
    "gpuprov_node_answered": ("1 if the facts of the node were read.", ["verb", "node"]),
    "gpuprov_check_differs": (
        "1 for each check that differs; other checks have no series.",
        ["verb", "node", "check", "severity"],
    ),
    "gpuprov_node_lease_seconds": (
        "Time since a run took the node, when drift read it; no series without a run.",
        ["verb", "node"],
    ),
    "gpuprov_node_switch_armed_seconds": (
        "Time since the dead man's switch was armed, when drift read it; no series if it is not.",
        ["verb", "node"],
    ),
    "gpuprov_node_affected": (
        "Number of security bulletins that concern a version of the node.",
        ["verb", "node", "component", "version"],
    ),
    "gpuprov_checked_timestamp_seconds": ("Time of the run.", ["verb"]),
}
"""Gauges of a run: name → description and labels."""


def write_textfile(run: Run, path: Path) -> None:
    """Write the metrics of a run in one step, as the textfile collector requires; its folder may be another
    user's.

    Raises:
        InvalidInput: the file cannot be written.
    """
    try:
        replace_file(path, generate_latest(_registry(run)))
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}", do="name a writable folder") from None


def _registry(run: Run) -> CollectorRegistry:
    """Return the metrics of a run: nodes by status, each node's result, the seconds of its lease and of an
    armed switch, each check that differs, versions that security bulletins concern, and the time.
    """
    registry = CollectorRegistry()
    gauges = {name: Gauge(name, METRICS[name][0], METRICS[name][1], registry=registry) for name in METRICS}

    def write(name: str, value: float, *labels: str) -> None:
        gauges[name].labels(run.verb, *labels).set(value)

    counts = Counter(node.status for node in run.nodes)
    for status in get_args(Status):
        write("gpuprov_nodes", counts[status], status)
    for node in run.nodes:
        write("gpuprov_node_in_sync", node.status == "in_sync", node.name)
        write("gpuprov_node_answered", node.reason is None, node.name)
        for each in node.drift:
            write("gpuprov_check_differs", 1, node.name, each.check, each.severity)
        if node.held and node.held.lease_s is not None:
            write("gpuprov_node_lease_seconds", node.held.lease_s, node.name)
        if node.held and node.held.armed_s is not None:
            write("gpuprov_node_switch_armed_seconds", node.held.armed_s, node.name)
    for note in run.notes:
        write("gpuprov_node_affected", len(note.bulletins), note.node, note.component, note.version)
    write("gpuprov_checked_timestamp_seconds", datetime.fromisoformat(run.at).timestamp())
    return registry
