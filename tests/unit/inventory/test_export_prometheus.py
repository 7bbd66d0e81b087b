"""Export to Prometheus: targets with labels, and alert rules on metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from gpuprov.cli.common.group import run
from gpuprov.doctor.concerns.errors import meanings
from gpuprov.health.output import metrics
from gpuprov.inventory.exports import Node, prometheus_files, targets
from gpuprov.inventory.exports.alerts import GROUPS, rules
from gpuprov.model.lock import write_lock
from gpuprov.report.prometheus import METRICS
from tests.unit.inventory.conftest import MakeLock

NODE = Node("gpu01", "10.0.0.1", 8, "NVIDIA H200", labels={"driver": "580.95.05", "cuda": "13.0"})
FLEET = """\
groups:
  train: {profile: hgx-h200-4, hosts: 'gpu[01-02]', os: ubuntu24.04, site: fra1, stack: {repository: nvidia}}
racks: {b7: gpu01}
"""


def test_a_target_has_the_labels_of_lock_and_fleet(
    locked: MakeLock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.lock.yml"
    lock = locked(FLEET)
    write_lock(lock, path)
    assert run(["inventory", "export", "prometheus", "--lock", str(path)]) == 0
    first, second = json.loads(capsys.readouterr().out)
    driver = lock.groups["train"].components.driver.version
    always = {"gpu_model": "NVIDIA H200", "driver": driver, "site": "fra1"}
    assert first == {"targets": ["gpu01:9100"], "labels": {"node": "gpu01", "rack": "b7", **always}}
    assert second == {"targets": ["gpu02:9100"], "labels": {"node": "gpu02", **always}}


def test_files_of_both_exporters_and_the_rules() -> None:
    plain = Node("login", "2001:db8::1", 0, "")
    files = prometheus_files([NODE, plain])
    assert set(files) == {
        "gpuprov-node.json", "gpuprov-dcgm.json", "gpuprov.rules.yml", "gpuprov.alertmanager.yml",
        "gpuprov.dashboard.json",
    }  # fmt: skip
    assert [each["targets"] for each in json.loads(files["gpuprov-node.json"])] == [
        ["10.0.0.1:9100"], ["[2001:db8::1]:9100"],
    ]  # fmt: skip
    assert [each["targets"] for each in json.loads(files["gpuprov-dcgm.json"])] == [["10.0.0.1:9400"]]
    assert json.loads(targets([plain]))[0]["labels"] == {"node": "login"}


HEALTH = metrics({"verdict": "", "faults": [], "unjudged": {}, "seconds": 0, "valid_s": 0}, 0.0)
"""Metrics of a node's health check."""


def test_each_rule_reads_metrics_that_exist() -> None:
    named = set(re.findall(r"\bgpuprov_\w+", " ".join(a.expr for alerts in GROUPS.values() for a in alerts)))
    of_nodes = {"gpuprov_expected_gpus"}  # of the monitoring role's textfile
    of_nodes |= {each for each in named if each.startswith("gpuprov_health_") and each in HEALTH}
    assert named - of_nodes <= set(METRICS)


def test_a_rule_says_how_bad_it_is_and_what_to_type() -> None:
    listed = [rule for group in yaml.safe_load(rules())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in listed}) == len(listed) > 10
    for rule in listed:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.search(r"gpuprov|systemctl|journalctl|drain", rule["annotations"]["description"]), rule


def test_the_doctor_decides_which_xids_are_faults() -> None:
    [alert] = [alert for alert in GROUPS["gpuprov-gpus"] if alert.name == "GpuXidBroken"]
    codes = {int(code) for code in re.findall(r"== (\d+)", alert.expr)}
    assert codes == {code for code, meaning in meanings().items() if meaning.severity == "broken"}
    assert {48, 79, 95} <= codes
    assert not codes & {13, 31, 43, 45}
