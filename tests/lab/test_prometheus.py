"""Debian's promtool and amtool on the exported files: alerts fire and resolve, routes and queries work."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from gpuprov.inventory.exports import Node as ExportedNode
from gpuprov.inventory.exports import prometheus_files
from gpuprov.inventory.exports.alertmanager import CRITICAL, WARNING
from gpuprov.inventory.exports.alerts import GROUPS, Alert
from gpuprov.inventory.exports.dashboard import dashboard
from gpuprov_lab import Lab, Node

ALERTS = {alert.name: alert for alerts in GROUPS.values() for alert in alerts}
FOLDER = "/srv/prometheus"
CONFIG = {
    "rule_files": ["gpuprov.rules.yml"],
    "scrape_configs": [
        {"job_name": job, "file_sd_configs": [{"files": [f"gpuprov-{job}.json"]}]} for job in ("node", "dcgm")
    ],
}


@dataclass
class Case:
    """Series of a fault, as promtool writes them, one sample a minute.

    Attributes:
        fires: minute at which the alert fires; `resolves`: at which it does not any more.
        labels: the alert's labels besides the severity.
        value: the expression's value, and as a duration.
    """

    series: dict[str, str]
    fires: int
    resolves: int
    labels: dict[str, str] = field(default_factory=lambda: {"node": "gpu1"})
    value: tuple[str, str] = ("", "")


GPU = {"node": "gpu1", "gpu": "0"}
OF_DRIFT = {"verb": "drift", "node": "gpu1"}


def gpu(metric: str, values: str, fires: int, resolves: int, value: str = "") -> Case:
    """Return a case of one series of dcgm-exporter."""
    return Case({f'{metric}{{node="gpu1",gpu="0"}}': values}, fires, resolves, GPU, (value, ""))


def run(metric: str, values: str, fires: int, resolves: int, verb: str = "drift", **more: str) -> Case:
    """Return a case of one series of a run's textfile; the node has answered."""
    labels = {"verb": verb, "node": "gpu1", **more}
    listed = ",".join(f'{name}="{value}"' for name, value in labels.items())
    answered = {f'gpuprov_node_answered{{verb="{verb}",node="gpu1"}}': "1x200"}
    return Case({f"{metric}{{{listed}}}": values, **answered}, fires, resolves, labels)


def verdict(word: str, values: str, fires: int, resolves: int) -> Case:
    """Return a case of one verdict of a node's health check."""
    series = {f'gpuprov_health_verdict{{node="gpu1",verdict="{word}"}}': values}
    return Case(series, fires, resolves, {"node": "gpu1", "verdict": word})


CASES = {
    "GpuprovDrift": run("gpuprov_node_in_sync", "1x4 0x20 1x30", 15, 40),
    "GpuprovNodeUnanswered": Case(
        {'gpuprov_node_answered{verb="drift",node="gpu1"}': "1x4 0x20 1x30"}, 15, 40, OF_DRIFT
    ),
    "GpuprovVerifyFailed": run("gpuprov_node_in_sync", "1x4 0x20 1x30", 6, 40, "verify"),
    # The run at minute 0 is the last one until minute 1600.
    "GpuprovRunMissing": Case(
        {'gpuprov_checked_timestamp_seconds{verb="drift"}': "0x1599 96000x200"}, 1590, 1700, {"verb": "drift"}
    ),
    "GpuprovDriverMismatch": run(
        "gpuprov_check_differs", "_x4 1x20 stale", 15, 40, check="driver.loaded", severity="critical"
    ),
    "GpuprovLeaseStuck": Case(
        {'gpuprov_node_lease_seconds{verb="drift",node="gpu1"}': "60x4 25000x20 stale"},
        6, 40, OF_DRIFT, ("25000", "6h 56m 40s"),
    ),
    "GpuprovSwitchArmed": Case(
        {'gpuprov_node_switch_armed_seconds{verb="drift",node="gpu1"}': "60x4 1200x20 stale"},
        6, 40, OF_DRIFT, ("1200", "20m 0s"),
    ),
    "GpuprovMetricsRejected": Case({'node_textfile_scrape_error{node="gpu1"}': "0x4 1x30 0x30"}, 30, 50),
    "GpuprovGpusMissing": Case(
        {
            'gpuprov_expected_gpus{node="gpu1"}': "2x100",
            'DCGM_FI_DEV_GPU_TEMP{node="gpu1",gpu="0"}': "50x100",
            'DCGM_FI_DEV_GPU_TEMP{node="gpu1",gpu="1"}': "50x4 stale _x20 50x60",
        },
        20, 40, value=("1", ""),
    ),
    "GpuprovNodeIsolate": verdict("isolate", "0x4 1x20 0x30", 10, 40),
    "GpuprovNodeReset": verdict("reset", "0x4 1x20 0x30", 10, 40),
    "GpuprovNodeUnknown": verdict("unknown", "0x4 1x30 0x30", 30, 50),
    # The run at minute 4 is the last one until minute 25; from minute 11 on its file is gone.
    "GpuprovHealthStale": Case(
        {
            'gpuprov_health_run_timestamp_seconds{node="gpu1"}': "0+60x4 240x5 stale _x13 1500+60x30",
            'gpuprov_health_valid_seconds{node="gpu1"}': "150x10 stale _x13 150x30",
        },
        15, 40, value=("660", "11m 0s"),
    ),
    "GpuXidBroken": gpu("DCGM_FI_DEV_XID_ERRORS", "31x4 79x20 0x30", 6, 40, "79"),
    "GpuXidDegraded": gpu("DCGM_FI_DEV_XID_ERRORS", "0x4 94x200", 10, 90, "94"),
    "GpuRowRemapFailed": gpu("DCGM_FI_DEV_ROW_REMAP_FAILURE", "0x4 1x20 0x30", 6, 40),
    "GpuRowRemapped": gpu("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "3x4 4x200", 10, 90),
    "GpuMemoryError": gpu("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "0x4 1x200", 10, 40),
    # 4: a power limit that was set, which is normal; 68: also a slowdown by temperature.
    "GpuThrottled": gpu("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "4x4 68x20 4x30", 15, 40),
    "GpuPcieReplays": gpu("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "0x9 0+600x60 36000x90", 60, 110),
}  # fmt: skip
HARMLESS = {
    "GpuprovNodeUnknown": verdict("unknown", "0x4 1x10 0x30", 14, 30),
    "GpuXidBroken": gpu("DCGM_FI_DEV_XID_ERRORS", "0x4 31x60", 30, 30),
    "GpuThrottled": gpu("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "5x60", 30, 30),
    "GpuprovDrift": Case({'gpuprov_node_in_sync{verb="verify",node="gpu1"}': "0x60"}, 30, 30),
}
"""Cases in which the alert must not fire."""


def firing(alert: Alert, case: Case) -> dict[str, Any]:
    """Return the alert as promtool expects it: its labels, and its texts without templates."""
    texts = {"summary": alert.summary, "description": alert.do}
    for name, text in texts.items():
        text = re.sub(r"{{ \$labels\.(\w+) }}", lambda found: case.labels[found[1]], text)
        text = text.replace("{{ $value }}", case.value[0])
        texts[name] = text.replace("{{ $value | humanizeDuration }}", case.value[1])
    labels = {**case.labels, "severity": alert.severity}
    return {"exp_labels": labels, "exp_annotations": texts}


def document(cases: dict[str, Case], *, harmless: bool = False) -> str:
    """Return the file for `promtool test rules`; with `harmless` no alert is expected."""
    tests = []
    for name, case in cases.items():
        expected = [] if harmless else [firing(ALERTS[name], case)]
        tests.append(
            {
                "name": name,
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
                "alert_rule_test": [
                    {"eval_time": f"{case.fires}m", "alertname": name, "exp_alerts": expected},
                    {"eval_time": f"{case.resolves}m", "alertname": name, "exp_alerts": []},
                ],
            }
        )
    return yaml.safe_dump({"rule_files": ["gpuprov.rules.yml"], "tests": tests})


@pytest.fixture(scope="module")
def promtool(module_lab: Lab) -> Node:
    """A node with promtool, the exported files, and a prometheus.yml that reads them."""
    [node] = module_lab.up(1, os="debian12")
    node.run(
        "cd /tmp && apt-get -q update && apt-get -q download prometheus prometheus-alertmanager"
        " && for file in prometheus*.deb; do dpkg-deb --extract $file prometheus; done"
        " && install prometheus/usr/bin/promtool prometheus/usr/bin/amtool /usr/local/bin"
    )
    places = {"rack": "b7", "site": "fra1"}
    stated = ExportedNode("gpu1", "10.0.0.1", 8, "NVIDIA H200", labels={"driver": "580.95.05"}, places=places)
    second = ExportedNode("gpu2", "2001:db8::2", 8, "NVIDIA H200", places=places)
    files = {**prometheus_files([stated, second]), "prometheus.yml": yaml.safe_dump(CONFIG)}
    for name, text in files.items():
        node.run(f"mkdir -p {FOLDER} && cat >{FOLDER}/{name}", input=text)
    return node


def judged(node: Node, text: str) -> tuple[int, str]:
    """Return exit status and output of `promtool test rules` for a file with this text."""
    node.run(f"cat >{FOLDER}/tests.yml", input=text)
    done = node.run(f"cd {FOLDER} && promtool test rules tests.yml 2>&1", check=False)
    return done.returncode, done.stdout


def test_each_alert_has_a_case() -> None:
    assert set(CASES) == set(ALERTS)


def test_prometheus_takes_the_files(promtool: Node) -> None:
    said = promtool.run(
        f"cd {FOLDER} && promtool check config prometheus.yml && promtool check rules *.rules.yml"
    )
    assert f"SUCCESS: {len(ALERTS)} rules found" in said.stdout


def test_prometheus_refuses_a_target_that_is_none(promtool: Node) -> None:
    promtool.run(
        f"cd {FOLDER} && mkdir -p bad && cp prometheus.yml gpuprov* bad && echo '{{}}' >bad/gpuprov-node.json"
    )
    assert (
        promtool.run(f"cd {FOLDER}/bad && promtool check config prometheus.yml", check=False).returncode != 0
    )


def test_each_alert_fires_and_resolves(promtool: Node) -> None:
    code, said = judged(promtool, document(CASES))
    assert code == 0, said


@pytest.mark.parametrize("name", CASES)
def test_an_alert_that_fires_for_another_fault_is_seen(promtool: Node, name: str) -> None:
    case = CASES[name]
    code, said = judged(promtool, document({name: case}, harmless=True))
    assert code != 0, said
    assert name in said


def test_what_is_harmless_fires_nothing(promtool: Node) -> None:
    """Check that no alert fires for harmless values."""
    code, said = judged(promtool, document(HARMLESS, harmless=True))
    assert code == 0, said


def test_a_run_that_never_came_is_missing(promtool: Node) -> None:
    case = Case({"up": "1x60"}, 30, 0, {"verb": "drift"})
    code, said = judged(promtool, document({"GpuprovRunMissing": case}))
    assert code == 0, said


def test_alertmanager_takes_the_routes(promtool: Node) -> None:
    file = f"{FOLDER}/gpuprov.alertmanager.yml"
    assert "SUCCESS" in promtool.run(f"amtool check-config {file}").stdout
    promtool.run(f"sed 's/receiver: {CRITICAL}/receiver: none/' {file} >{FOLDER}/wrong.yml")
    assert promtool.run(f"amtool check-config {FOLDER}/wrong.yml", check=False).returncode != 0


@pytest.mark.parametrize(("severity", "receiver"), [("critical", CRITICAL), ("warning", WARNING)])
def test_an_alert_goes_to_the_receiver_of_its_severity(promtool: Node, severity: str, receiver: str) -> None:
    ask = f"amtool config routes test --config.file={FOLDER}/gpuprov.alertmanager.yml severity={severity}"
    assert promtool.run(ask).stdout.strip() == receiver


LABELS = {
    "gpuprov_expected_gpus": ['node="gpu1"'],
    "gpuprov_checked_timestamp_seconds": ['verb="drift"'],
    "gpuprov_check_differs": ['verb="drift",node="gpu1",check="driver.loaded",severity="critical"'],
}
"""Labels of the series of gpuprov's metrics; others have verb and node."""


def series_of(metric: str) -> list[dict[str, str]]:
    """Return series of a metric, of two GPUs or of two verbs: those of GPUs grow, gpuprov's are 1."""
    of_gpus = [f'node="gpu1",gpu="{gpu}"' for gpu in range(2)]
    of_runs = [f'verb="{verb}",node="gpu1"' for verb in ("drift", "verify")]
    if metric.startswith("DCGM_"):
        labels, values = of_gpus, "1+1x60"
    else:
        labels, values = LABELS.get(metric, of_runs), "1x60"
    return [{"series": f"{metric}{{{each}}}", "values": values} for each in labels]


def test_each_query_of_the_dashboard_gives_data(promtool: Node) -> None:
    """Ask each query as a rule that fires if it gives data: it must, and not without series."""
    stated = [target["expr"] for panel in json.loads(dashboard())["panels"] for target in panel["targets"]]
    asked = [each.replace("$node", "gpu1").replace("$__rate_interval", "5m") for each in stated]
    rules = [{"alert": f"Q{at}", "expr": f"count({query}) > 0"} for at, query in enumerate(asked)]
    text = yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]})
    promtool.run(f"cat >{FOLDER}/queries.yml", input=text)
    metrics = sorted(set(re.findall(r"\b(?:gpuprov|DCGM)_\w+", " ".join(asked))))
    series = [each for metric in metrics for each in series_of(metric)]
    fires = {"exp_labels": {}, "exp_annotations": {}}
    tests = [
        {
            "interval": "1m",
            "input_series": given,
            "alert_rule_test": [
                {"eval_time": "30m", "alertname": rule["alert"], "exp_alerts": [fires] if given else []}
                for rule in rules
            ],
        }
        for given in (series, [])
    ]
    code, said = judged(promtool, yaml.safe_dump({"rule_files": ["queries.yml"], "tests": tests}))
    assert code == 0, said
