"""Health checks in the exports for Slurm and Kubernetes."""

from __future__ import annotations

import json
from dataclasses import replace

import yaml

from gpuprov.health.memory import DRAINING
from gpuprov.inventory.exports import Node
from gpuprov.inventory.exports.kubernetes import problem_detector
from gpuprov.inventory.exports.slurm import slurm_conf
from gpuprov.roles.health import LIBRARY, PLUGIN

NODE = Node("gpu1", "10.0.0.1", 8, "NVIDIA H200", health_s=60)


def test_slurm_gets_the_program_if_all_nodes_have_it() -> None:
    text = slurm_conf([NODE, replace(NODE, name="gpu2", health_s=30)])
    assert f"HealthCheckProgram={LIBRARY}/slurm-health\nHealthCheckInterval=30\n" in text


def test_slurm_gets_none_if_a_node_has_no_health_check() -> None:
    assert "HealthCheck" not in slurm_conf([NODE, replace(NODE, name="login", health_s=0)])
    assert "HealthCheck" not in slurm_conf([])


def test_the_detector_has_a_condition_for_each_class_that_ends_jobs() -> None:
    manifest = yaml.safe_load(yaml.safe_dump(problem_detector()))
    config = json.loads(manifest["data"]["gpuprov-health.json"])
    assert config["plugin"] == "custom"
    permanent = {rule["condition"]: rule for rule in config["rules"] if rule["type"] == "permanent"}
    assert set(permanent) == {f"Gpuprov{word.title()}" for word in DRAINING}
    assert {each["type"] for each in config["conditions"]} == set(permanent)
    for rule in config["rules"]:
        assert rule["path"] == f"{LIBRARY}/{PLUGIN}"
        assert rule["reason"] == f"Gpuprov{rule['args'][0].title()}"
    # A time-out of a rule above the plugin's own ends the detector at its start.
    assert not any("timeout" in rule for rule in config["rules"])
