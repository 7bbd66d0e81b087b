"""Files for Prometheus: nodes for `file_sd_configs`, labelled by the lock and the fleet, and alert rules.

In addition routes for Alertmanager, and a dashboard for Grafana.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence

from gpuprov.inventory.exports.alertmanager import alertmanager
from gpuprov.inventory.exports.alerts import rules
from gpuprov.inventory.exports.dashboard import dashboard
from gpuprov.inventory.exports.node import Node

JOBS = {"node": 9100, "dcgm": 9400}
"""Job → port of its exporter: node_exporter, and dcgm-exporter."""
RULES_FILE = "gpuprov.rules.yml"
ROUTES_FILE = "gpuprov.alertmanager.yml"
DASHBOARD_FILE = "gpuprov.dashboard.json"


def targets(nodes: Sequence[Node], job: str = "node") -> str:
    """Return the nodes as JSON for `file_sd_configs`, one target each.

    Labels: `node`, `gpu_model` and `driver` by the lock; `rack`, `nvlink_domain` and `site` if the fleet
    states them. dcgm's nodes are those with GPUs.

    Args:
        job: a key of `JOBS`.
    """
    found = [
        {"targets": [f"{_host(node.address)}:{JOBS[job]}"], "labels": _labels(node)}
        for node in nodes
        if node.gpus or job != "dcgm"
    ]
    return json.dumps(found, indent=1) + "\n"


def prometheus_files(nodes: Sequence[Node]) -> Mapping[str, str]:
    """Return path → text of the files for a folder such as /etc/prometheus: targets by job, alert rules,
    routes for Alertmanager, a dashboard for Grafana.
    """
    return {
        **{f"gpuprov-{job}.json": targets(nodes, job) for job in JOBS},
        RULES_FILE: rules(),
        ROUTES_FILE: alertmanager(),
        DASHBOARD_FILE: dashboard(),
    }


def _host(address: str) -> str:
    """Return an address as the host of a target: IPv6 in brackets."""
    try:
        return f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
    except ValueError:
        return address


def _labels(node: Node) -> dict[str, str]:
    """Return a target's labels, without empty ones, which Prometheus would drop."""
    labels = {"node": node.name, "gpu_model": node.model if node.gpus else "", **node.places}
    labels["driver"] = node.labels.get("driver", "")
    return {name: value for name, value in labels.items() if value}
