"""Kubernetes' hooks with the real kubectl, against an API server of the test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpuprov.upgrade.known_hooks import CORDON, KNOWN_HOOKS
from tests.unit.upgrade.kubernetes_api import NODE, ApiNode, served

EVICTION = "POST /api/v1/namespaces/default/pods/trainer-0/eviction"
PATCH = f"PATCH /api/v1/nodes/{NODE}"


def hook(
    cluster: ApiNode, folder: Path, moment: str, run: str = "1-2-upgrade-run1", timeout_s: int = 60
) -> tuple[int, str]:
    """Run a hook; return its exit status and output."""
    own = {"GPUPROV_NODE": NODE, "GPUPROV_RUN": run, "GPUPROV_TIMEOUT": str(timeout_s)}
    with served(folder, cluster) as environment:
        done = subprocess.run(
            ["/bin/sh", "-c", KNOWN_HOOKS["kubernetes"].commands[moment]],
            env=os.environ | environment | own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=100,
        )
    return done.returncode, done.stdout


def cordoned(run: str | None) -> ApiNode:
    """Return a cluster whose node is cordoned, by an upgrade or with None by others."""
    cluster = ApiNode()
    cluster.node["spec"]["unschedulable"] = True
    if run:
        cluster.annotations[CORDON] = run
    return cluster


def test_a_node_is_cordoned_drained_and_put_back(tmp_path: Path) -> None:
    cluster = ApiNode()
    code, said = hook(cluster, tmp_path, "drain")
    assert (code, cluster.cordoned, cluster.annotations) == (
        0,
        True,
        {"site": "kept", CORDON: "1-2-upgrade-run1"},
    ), said
    assert cluster.pods == {"plugin-x": "DaemonSet"}
    assert cluster.requests == [PATCH, EVICTION]
    code, said = hook(cluster, tmp_path, "resume")
    assert (code, cluster.cordoned, cluster.annotations) == (0, False, {"site": "kept"}), said


def test_a_cordon_of_others_stays(tmp_path: Path) -> None:
    """Check that a node that others had cordoned stays so after `resume`."""
    cluster = cordoned(None)
    code, said = hook(cluster, tmp_path, "drain")
    assert (code, cluster.requests) == (0, [EVICTION]), said
    code, said = hook(cluster, tmp_path, "resume")
    assert (code, cluster.cordoned, cluster.requests) == (0, True, [EVICTION])
    assert f"{NODE} stays cordoned" in said


@pytest.mark.parametrize("run", ["1-2-upgrade-run10", "1-2-upgrade-run0", "1-2-upgrade-xrun1"])
def test_a_cordon_of_another_run_is_not_lifted(tmp_path: Path, run: str) -> None:
    cluster = cordoned(run)
    assert hook(cluster, tmp_path, "resume")[0] == 0
    assert (cluster.cordoned, cluster.requests) == (True, [])


def test_a_cordon_that_an_earlier_upgrade_left_is_taken_over(tmp_path: Path) -> None:
    cluster = cordoned("1-2-upgrade-run0")
    assert hook(cluster, tmp_path, "drain")[0] == 0
    assert cluster.annotations[CORDON] == "1-2-upgrade-run1"


def test_a_cordon_that_a_repair_left_is_not_taken_over(tmp_path: Path) -> None:
    cluster = cordoned("1-2-repair-run0")
    for moment in ("drain", "resume"):
        assert hook(cluster, tmp_path, moment)[0] == 0
    assert (cluster.cordoned, cluster.annotations[CORDON]) == (True, "1-2-repair-run0")


def test_a_node_that_was_uncordoned_meanwhile_loses_only_the_annotation(tmp_path: Path) -> None:
    cluster = ApiNode()
    cluster.annotations[CORDON] = "1-2-upgrade-run1"
    assert hook(cluster, tmp_path, "resume")[0] == 0
    assert (cluster.cordoned, cluster.annotations) == (False, {"site": "kept"})


def test_an_eviction_that_a_disruption_budget_refuses_is_repeated(tmp_path: Path) -> None:
    cluster = ApiNode(refusals=1)
    code, said = hook(cluster, tmp_path, "drain")
    assert (code, cluster.requests) == (0, [PATCH, EVICTION, EVICTION]), said


def test_a_budget_that_allows_nothing_fails_the_hook_with_the_pods_name(tmp_path: Path) -> None:
    cluster = ApiNode(refusals=-1)
    code, said = hook(cluster, tmp_path, "drain", timeout_s=2)
    assert code != 0
    assert "trainer-0" in said
    assert "disruption budget" in said
    assert "trainer-0" in cluster.pods


def test_a_pod_without_a_controller_is_not_deleted(tmp_path: Path) -> None:
    cluster = ApiNode(pods={"mine": ""})
    code, said = hook(cluster, tmp_path, "drain")
    assert (code != 0, "mine" in cluster.pods) == (True, True), said
    assert EVICTION not in cluster.requests


def test_a_server_that_does_not_answer_fails_both_hooks(tmp_path: Path) -> None:
    for moment in ("drain", "resume"):
        done = subprocess.run(
            ["/bin/sh", "-c", KNOWN_HOOKS["kubernetes"].commands[moment]],
            env=os.environ
            | {"HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none"), "GPUPROV_NODE": NODE}
            | {"GPUPROV_RUN": "1-2-upgrade-run1", "GPUPROV_TIMEOUT": "5"},
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode != 0
