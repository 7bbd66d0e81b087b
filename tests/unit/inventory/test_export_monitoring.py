"""Routes for Alertmanager and the dashboard for Grafana: alerts and metrics exist, and panels have places."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from gpuprov.inventory.exports.alertmanager import CRITICAL, INHIBITED, WARNING, alertmanager
from gpuprov.inventory.exports.alerts import GROUPS, rules
from gpuprov.inventory.exports.dashboard import WIDTH, dashboard
from gpuprov.report.prometheus import METRICS

ALERTS = {alert.name: alert for alerts in GROUPS.values() for alert in alerts}
# Of dcgm-exporter 4.5.3-4.8.2, etc/default-counters.csv.
DCGM_DEFAULTS = {
    *(f"DCGM_FI_DEV_{name}" for name in (
        "SM_CLOCK", "MEM_CLOCK", "GPU_TEMP", "MEMORY_TEMP", "POWER_USAGE", "TOTAL_ENERGY_CONSUMPTION",
        "PCIE_REPLAY_COUNTER", "GPU_UTIL", "MEM_COPY_UTIL", "XID_ERRORS", "FB_FREE", "FB_USED", "FB_RESERVED",
        "NVLINK_BANDWIDTH_TOTAL", "UNCORRECTABLE_REMAPPED_ROWS", "CORRECTABLE_REMAPPED_ROWS",
        "ROW_REMAP_FAILURE",
    )),
    *(f"DCGM_FI_PROF_{name}" for name in (
        "GR_ENGINE_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "PCIE_TX_BYTES", "PCIE_RX_BYTES",
    )),
}  # fmt: skip


@pytest.fixture(scope="module")
def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard())["panels"]
    return found


def queries(panels: list[dict[str, Any]]) -> list[str]:
    """Return the expressions of the panels."""
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_every_alert_has_a_route_to_a_receiver() -> None:
    config = yaml.safe_load(alertmanager())
    receivers = {each["name"] for each in config["receivers"]}
    assert receivers == {CRITICAL, WARNING}
    assert config["route"]["receiver"] == WARNING
    [critical] = config["route"]["routes"]
    assert (critical["matchers"], critical["receiver"]) == (['severity="critical"'], CRITICAL)
    assert {alert.severity for alert in ALERTS.values()} == {"critical", "warning"}


def test_an_alert_silences_only_others_that_exist_and_are_not_worse() -> None:
    named = {name for sources, targets, _ in INHIBITED for name in (*sources, *targets)}
    assert named <= set(ALERTS)
    for sources, targets, equal in INHIBITED:
        assert not set(sources) & set(targets)
        assert "node" in equal
        assert {ALERTS[name].severity for name in sources} == {"critical"}
        assert any(ALERTS[name].severity == "warning" for name in targets) or len(targets) > 1
    rules = yaml.safe_load(alertmanager())["inhibit_rules"]
    assert rules[0] == {
        "source_matchers": ['alertname=~"GpuXidBroken"'],
        "target_matchers": ['alertname=~"GpuXidDegraded"'],
        "equal": ["node", "gpu"],
    }


def test_each_query_reads_metrics_that_an_exporter_gives(panels: list[dict[str, Any]]) -> None:
    named = set(re.findall(r"\b(?:gpuprov|DCGM)_\w+", " ".join(queries(panels))))
    assert len(named) > 12
    assert named <= {*METRICS, "gpuprov_expected_gpus", *DCGM_DEFAULTS}


def test_each_query_is_about_the_chosen_nodes(panels: list[dict[str, Any]]) -> None:
    for query in queries(panels):
        metrics = re.findall(r"\b(?:gpuprov|DCGM)_\w+(\{[^}]*\})", query)
        assert metrics, query
        for selector in metrics:
            assert 'node=~"$node"' in selector or 'node=""' in selector, query
        assert query.count("{") == query.count("}") == len(metrics)
        assert query.count("(") == query.count(")")


def test_series_of_a_run_are_the_controllers(panels: list[dict[str, Any]]) -> None:
    """Require the label that a node's own exporter always has to be absent: its series would count, too."""
    written = " ".join([rules(), *queries(panels)])
    selectors = re.findall(r"\bgpuprov_(?:checked_timestamp_seconds|nodes)\b(\{[^}]*\})?", written)
    assert len(selectors) == 3
    assert all('node=""' in each for each in selectors)


def test_panels_have_their_own_place_and_number(panels: list[dict[str, Any]]) -> None:
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < WIDTH


def test_the_dashboard_can_be_imported(panels: list[dict[str, Any]]) -> None:
    document = json.loads(dashboard())
    assert (document["id"], document["uid"], document["schemaVersion"]) == (None, "gpuprov-fleet", 39)
    assert [each["name"] for each in document["templating"]["list"]] == ["ds", "node"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${ds}"}
