"""A dashboard for Grafana, on gpuprov's own metrics and on those of NVIDIA's dcgm-exporter.

Its JSON is the classic form of a dashboard (schemaVersion 39), which can be imported, or provisioned as a
file. Variables choose the data source and the nodes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from gpuprov.inventory.exports.alerts import DRIFT_LATE_S

UID = "gpuprov-fleet"
NODES = 'node=~"$node"'
"""Selector of the chosen nodes. Nodes' own metrics have the label from `file_sd_configs`."""
WIDTH = 24
"""Columns of Grafana's grid."""
Kind = Literal["stat", "timeseries", "table"]


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        queries: legend → expression; `{0}` is the selector of the chosen nodes.
        unit: Grafana's name of the unit.
        width: in columns of the grid.
        red: value from which a panel of one number is red; None for no colour.
    """

    title: str
    kind: Kind
    queries: dict[str, str]
    unit: str = "short"
    width: int = 12
    red: float | None = None


DRIFT, VERIFY = 'verb="drift",{0}', 'verb="verify",{0}'
DIFFERS = f"gpuprov_node_in_sync{{{{{DRIFT}}}}} == bool 0 and gpuprov_node_answered{{{{{DRIFT}}}}} == 1"
SEEN = "count by (node) (DCGM_FI_DEV_GPU_TEMP{{{0}}})"
OF_GPU = "{{node}} {{gpu}}"
"""Legend of a line."""


def _gpu(title: str, metric: str, unit: str = "short", *, counter: bool = False) -> Panel:
    """Return a panel with one line for each GPU; a counter is shown as its change per second."""
    selected = metric + "{{{0}}}"
    return Panel(
        title, "timeseries", {OF_GPU: f"rate({selected}[$__rate_interval])" if counter else selected}, unit
    )


FLEET = (
    Panel("Nodes as their lock", "stat", {"": f"sum(gpuprov_node_in_sync{{{{{DRIFT}}}}})"}, width=4),
    Panel("Nodes that differ", "stat", {"": f"sum({DIFFERS})"}, width=4, red=1),
    Panel(
        "Nodes without an answer",
        "stat",
        {"": f"sum(1 - gpuprov_node_answered{{{{{DRIFT}}}}})"},
        width=4,
        red=1,
    ),
    Panel(
        "Failed verifications", "stat", {"": f"sum(1 - gpuprov_node_in_sync{{{{{VERIFY}}}}})"}, width=4, red=1
    ),
    Panel(
        "Time since the last drift",
        "stat",
        {"": 'time() - max(gpuprov_checked_timestamp_seconds{{verb="drift",node=""}})'},
        "s",
        width=4,
        red=DRIFT_LATE_S,
    ),
    Panel(
        "GPUs that are missing",
        "stat",
        {"": f"sum(max by (node) (gpuprov_expected_gpus{{{{{{0}}}}}}) - on(node) {SEEN})"},
        width=4,
        red=1,
    ),
    Panel("What differs", "table", {"": "gpuprov_check_differs{{{0}}} == 1"}, width=24),
)
GPUS = (
    _gpu("Utilization", "DCGM_FI_DEV_GPU_UTIL", "percent"),
    _gpu("Tensor cores active", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "percentunit"),
    _gpu("Power", "DCGM_FI_DEV_POWER_USAGE", "watt"),
    _gpu("Temperature", "DCGM_FI_DEV_GPU_TEMP", "celsius"),
    _gpu("Memory in use", "DCGM_FI_DEV_FB_USED", "mbytes"),
    _gpu("Clock of the SMs in MHz", "DCGM_FI_DEV_SM_CLOCK"),
    _gpu("NVLink, change of the counter", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", counter=True),
    _gpu("PCIe replays a second", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", counter=True),
    _gpu("Last Xid, which stays until the exporter restarts", "DCGM_FI_DEV_XID_ERRORS", "none"),
    Panel(
        "Remapped rows",
        "timeseries",
        {
            f"{OF_GPU} uncorrectable": "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{{{0}}}",
            f"{OF_GPU} failed": "DCGM_FI_DEV_ROW_REMAP_FAILURE{{{0}}}",
        },
    ),
)


def dashboard() -> str:
    """Return the dashboard of the fleet for Grafana, as JSON text."""
    document = {
        "id": None,
        "uid": UID,
        "title": "GPU fleet",
        "description": "Written whole by `gpuprov inventory export prometheus`.",
        "schemaVersion": 39,
        "tags": ["gpuprov"],
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _panels(),
    }
    return json.dumps(document, indent=1) + "\n"


def _variables() -> list[dict[str, Any]]:
    """Return the variables: data source, and nodes, which are those of the last runs of gpuprov."""
    query = "label_values(gpuprov_node_answered, node)"
    return [
        {"name": "ds", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "node",
            "label": "Node",
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${ds}"},
            "query": {"query": query, "refId": "node"},
            "definition": query,
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def _panels() -> list[dict[str, Any]]:
    """Return the panels with their places in the grid, row by row."""
    found, left, top = [], 0, 0
    for number, panel in enumerate((*FLEET, *GPUS), start=1):
        height = 4 if panel.kind == "stat" else 8
        found.append(_panel(number, panel, {"h": height, "w": panel.width, "x": left, "y": top}))
        left += panel.width
        if left == WIDTH:
            left, top = 0, top + height
    return found


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    """Return a panel with Grafana's keys."""
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.red is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.red}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    table: dict[str, Any] = {"format": "table", "instant": True} if panel.kind == "table" else {}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "${ds}"},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expr.format(NODES), "legendFormat": legend, **table}
            for at, (legend, expr) in enumerate(panel.queries.items())
        ],
    }
