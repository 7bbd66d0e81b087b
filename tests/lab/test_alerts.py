"""Debian's running Prometheus and Alertmanager: faults of a node reach a receiver, and go after `apply`.

The node also has the part of the controller: a second node_exporter with the files of runs. Durations of
rules and routes are shortened, as no test waits for minutes; dcgm-exporter is in no archive, so that a server
of the test gives its metrics.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.inventory.exports import Node as ExportedNode
from gpuprov.inventory.exports import prometheus_files
from gpuprov.inventory.exports.alertmanager import CRITICAL, WARNING
from gpuprov.inventory.exports.dashboard import dashboard
from gpuprov_lab import Lab, Node
from tests.lab.command_line import gpuprov
from tests.lab.provisioned_node import provision

pytestmark = pytest.mark.slow
TEXTFILES, RUNS, FOLDER = "/var/lib/prometheus/node-exporter", "/srv/runs", "/etc/prometheus"
RECEIVED = "/srv/received"
UNIT = """\
[Service]
ExecStart={command}
"""
UNITS = {
    "runs": f"/usr/bin/prometheus-node-exporter --collector.disable-defaults --collector.textfile"
    f" --collector.textfile.directory={RUNS} --web.listen-address=127.0.0.1:9101",
    "receiver": "/usr/bin/python3 /srv/receiver.py",
    "dcgm": "/usr/bin/python3 -m http.server --directory /srv/dcgm 9400",
}
"""Unit → command of what stands for the controller, for a pager, and for dcgm-exporter."""
RECEIVER = f"""\
import http.server, json

class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open("{RECEIVED}", "a") as file:
            for alert in said["alerts"]:
                print(json.dumps([said["receiver"], alert["status"], alert["labels"]]), file=file)
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", 9099), Receiver).serve_forever()
"""
SHORT = {"group_wait": "1s", "group_interval": "2s", "repeat_interval": "1h"}
JOBS: dict[str, dict[str, Any]] = {
    "node": {"file_sd_configs": [{"files": ["gpuprov-node.json"]}]},
    "dcgm": {"file_sd_configs": [{"files": ["gpuprov-dcgm.json"]}]},
    "gpuprov": {"honor_labels": True, "static_configs": [{"targets": ["127.0.0.1:9101"]}]},
}
"""The jobs of docs/guides/prometheus.md."""


class Site:
    """A node, the folder of its fleet, and the site's monitoring on the node."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder

    def says(self, command: str) -> str:
        """Return a command's output, regardless of its exit status."""
        done = self.node.run(command, check=False)
        return done.stdout + done.stderr

    def install(self) -> None:
        """Install Prometheus and Alertmanager with the exported files."""
        packages = "prometheus prometheus-alertmanager prometheus-node-exporter"
        self.node.run(f"apt-get -q update && apt-get -q -y install --no-install-recommends {packages}")
        known = ExportedNode(self.node.name, self.node.address, 4, "NVIDIA A100-SXM4-80GB")
        exported = prometheus_files([known])
        files = {f"{FOLDER}/{name}": text for name, text in exported.items()}
        rules = re.sub(r"for: \d+m", "for: 2s", exported["gpuprov.rules.yml"])
        files[f"{FOLDER}/gpuprov.rules.yml"] = rules
        files[f"{FOLDER}/prometheus.yml"] = yaml.safe_dump(
            {
                "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
                "rule_files": ["gpuprov.rules.yml"],
                "alerting": {"alertmanagers": [{"static_configs": [{"targets": ["127.0.0.1:9093"]}]}]},
                "scrape_configs": [{"job_name": name, **job} for name, job in JOBS.items()],
            }
        )
        files[f"{FOLDER}/alertmanager.yml"] = _routed(exported["gpuprov.alertmanager.yml"])
        # Alertmanager looks for its own private address unless it has no peers.
        files["/etc/default/prometheus-alertmanager"] = 'ARGS="--cluster.listen-address="\n'
        files["/srv/receiver.py"] = RECEIVER
        files["/srv/dcgm/metrics"] = _of_gpus(self.node.name, 2)
        for name, command in UNITS.items():
            files[f"/etc/systemd/system/{name}.service"] = UNIT.format(command=command)
        for path, text in files.items():
            self.node.run(f"mkdir -p $(dirname {path}) {RUNS} && cat >{path}", input=text)
        self.node.run(f"touch {RECEIVED}; systemctl daemon-reload && systemctl start {' '.join(UNITS)}")
        self.node.run("systemctl restart prometheus prometheus-alertmanager")

    def watch(self, *verbs: str) -> None:
        """Run verbs, and give their metrics to the controller's exporter."""
        for verb in verbs or ("drift",):
            file = self.folder / f"{verb}.prom"
            gpuprov(self.folder, verb, code=None)
            gpuprov(self.folder, "report", "latest", "--prometheus", str(file), code=None)
            self.node.run(f"cat >{RUNS}/part && mv {RUNS}/part {RUNS}/{verb}.prom", input=file.read_text())

    def received(self, alert: str) -> list[tuple[str, str]]:
        """Return receiver and status of each message about an alert of the node, repetitions left out."""
        lines = map(json.loads, self.says(f"cat {RECEIVED}").splitlines())
        found = [
            (receiver, status)
            for receiver, status, labels in lines
            if (labels["alertname"], labels.get("node")) == (alert, self.node.name)
        ]
        return [each for at, each in enumerate(found) if found[at - 1 : at] != [each]]

    def data(self, query: str) -> list[Any]:
        """Return the series that the running Prometheus has for a query."""
        asked = f"promtool query instant --format=json http://127.0.0.1:9090 {shlex.quote(query)}"
        found: list[Any] = json.loads(self.node.run(asked).stdout)
        return found

    def until(self, holds: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not holds():
            logs = "journalctl --no-pager -n 30 -u prometheus -u prometheus-alertmanager -u receiver"
            assert time.monotonic() < deadline, self.says(f"cat {RECEIVED}; {logs}")
            time.sleep(1)


def _routed(text: str) -> str:
    """Return the exported configuration of Alertmanager with addresses of receivers, and short times."""
    config = yaml.safe_load(text)
    config["route"] |= SHORT
    for route in config["route"]["routes"]:
        route |= SHORT
    for receiver in config["receivers"]:
        receiver["webhook_configs"] = [{"url": "http://127.0.0.1:9099/", "send_resolved": True}]
    return yaml.safe_dump(config)


def queries() -> list[str]:
    """Return the queries of the dashboard's panels."""
    panels = json.loads(dashboard())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def _of_gpus(node: str, count: int) -> str:
    """Return the metrics of dcgm-exporter that the dashboard and an alert read, of some GPUs."""
    names = {*re.findall(r"\bDCGM_\w+", " ".join(queries())), "DCGM_FI_DEV_GPU_TEMP"}
    gpus = [f'{{gpu="{gpu}",Hostname="{node}"}} 0\n' for gpu in range(count)]
    return "".join(f"{name}{gpu}" for name in sorted(names) for gpu in gpus)


@pytest.fixture(scope="module")
def site(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A provisioned node with metrics in a textfile, watched by a Prometheus."""
    folder = tmp_path_factory.mktemp("alerts")
    site = Site(provision(module_lab, folder, settings={"monitoring": {"textfile": TEXTFILES}}), folder)
    site.install()
    site.watch()
    return site


FAULTS = {
    "GpuprovDrift": ("systemctl disable --now nvidia-persistenced", WARNING),
    "GpuprovMetricsRejected": (f"echo no metric >>{TEXTFILES}/gpuprov.prom", WARNING),
}
"""Alert → fault that `apply` corrects, and receiver."""


@pytest.mark.parametrize("alert", FAULTS)
def test_a_fault_reaches_the_receiver_and_goes_after_apply(site: Site, alert: str) -> None:
    fault, receiver = FAULTS[alert]
    assert site.received(alert) == []
    site.node.run(fault)
    site.watch()
    site.until(lambda: site.received(alert) == [(receiver, "firing")])
    gpuprov(site.folder, "apply", "--yes")
    site.watch()
    site.until(lambda: site.received(alert) == [(receiver, "firing"), (receiver, "resolved")])


def test_missing_gpus_are_critical_until_they_are_back(site: Site) -> None:
    """Wait for the last message: the alert went for a moment with the rejected file above."""
    site.until(lambda: site.received("GpuprovGpusMissing")[-1:] == [(CRITICAL, "firing")])
    site.node.run("cat >/srv/dcgm/metrics", input=_of_gpus(site.node.name, 4))
    site.until(lambda: site.received("GpuprovGpusMissing")[-1:] == [(CRITICAL, "resolved")])


def test_each_query_of_the_dashboard_has_data(site: Site) -> None:
    site.node.run("systemctl disable --now nvidia-persistenced")
    site.watch("drift", "verify")
    asked = [each.replace("$node", site.node.name).replace("$__rate_interval", "1m") for each in queries()]
    site.until(lambda: [query for query in asked if not site.data(query)] == [], 90)
