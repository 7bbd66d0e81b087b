"""Profilers and monitoring on a real node: Debian's packages, and the metrics of a running node_exporter."""

from __future__ import annotations

import shutil

import pytest

from gpuprov.catalog import load
from gpuprov_lab import Lab
from gpuprov_lab.mirror.nvidia import build
from tests.lab.stub_driver_node import StubDriverNode, component, drive

ROLES = ("profiling_tools", "monitoring")
FOLDER = "/var/lib/prometheus/node-exporter"
OBSERVED = {"profiling_counters": True, "monitoring": {"textfile": FOLDER}}
AREAS = ("profiling.", "monitoring.")
ASK = """python3 -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:9100/metrics").read().decode())'"""


@pytest.fixture(scope="module")
def driven(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> StubDriverNode:
    """A node with a mirror, whose lock states monitoring; not applied."""
    [node] = module_lab.up(1, os="debian12", gpu="a100x4")
    drive(node)
    folder = tmp_path_factory.mktemp("observing")
    mirror = build(folder / "mirror", load([]), ["debian12"])
    shutil.copytree(mirror.root, node.root / "srv/mirror")
    url = "file:/srv/mirror/compute/cuda/repos/debian12/x86_64"
    line = f"deb [signed-by=/srv/mirror/keys/mirror.gpg] {url} /"
    node.run("cat >/etc/apt/sources.list.d/cuda.list && apt-get -q update", input=line + "\n")
    driven = StubDriverNode(module_lab, node, folder)
    driven.state(
        OBSERVED,
        profiling_tools=component(driven.candidate("sysstat", "atop")),
        dcgm=component(driven.candidate("datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-cuda12")),
        node_exporter=component(driven.candidate("prometheus-node-exporter")),
    )
    return driven


def seen(driven: StubDriverNode) -> tuple[set[str], set[str]]:
    """Return the differences in drift and in verify."""
    return set(driven.drift(*AREAS)), set(driven.failed(*AREAS))


@pytest.mark.slow
def test_check_says_what_would_change_and_changes_nothing(driven: StubDriverNode) -> None:
    before = driven.says("dpkg-query -W; ls /etc/modprobe.d")
    outcome, changed = driven.apply(*ROLES, check=True)
    assert outcome.ok, outcome.failed
    assert "Allow all users, or only root, to read GPU performance counters" in changed
    assert driven.says("dpkg-query -W; ls /etc/modprobe.d") == before


def test_fresh_node_gets_them_and_exports_what_is_expected(driven: StubDriverNode) -> None:
    outcome, _ = driven.apply(*ROLES)
    assert outcome.ok, outcome.failed
    # The loaded module still has its earlier parameter.
    assert seen(driven) == ({"profiling.counters_now"}, {"profiling.counters_now"})
    driven.reboot()
    assert seen(driven) == (set(), set())
    metrics = driven.says(ASK)
    assert "gpuprov_expected_gpus 4" in metrics
    assert 'gpuprov_expected_info{check="driver.loaded",subject="",value="535.309.01"} 1' in metrics
    assert "node_textfile_scrape_error 0" in metrics


def test_second_run_changes_nothing(driven: StubDriverNode) -> None:
    assert driven.apply(*ROLES)[1] == []
    assert driven.apply(*ROLES, check=True)[1] == []


FAULTS = {
    "profiling.packages": "dpkg --remove atop",
    "profiling.counters": "rm /etc/modprobe.d/gpuprov-profiling.conf",
    "monitoring.exporter": "systemctl disable --now prometheus-node-exporter",
    "monitoring.dcgm": "systemctl disable --now nvidia-dcgm",
    "monitoring.dcgm_packages": "dpkg --remove datacenter-gpu-manager-4-cuda12",
    "monitoring.textfile": f"echo >>{FOLDER}/gpuprov.prom",
}


@pytest.mark.slow
def test_faults_are_seen_by_both_witnesses_and_mended(driven: StubDriverNode) -> None:
    for fault in FAULTS.values():
        driven.node.run(fault)
    assert seen(driven) == (set(FAULTS), set(FAULTS))
    outcome, _ = driven.apply(*ROLES)
    assert outcome.ok, outcome.failed
    assert seen(driven) == (set(), set())


@pytest.mark.slow
def test_changed_lock_changes_what_prometheus_reads(driven: StubDriverNode) -> None:
    driven.state({"persistence": True})
    assert set(driven.drift("monitoring.")) == {"monitoring.textfile"}
    assert driven.apply("monitoring")[1] == [
        "Write the node's expected state for Prometheus, and record the file's path"
    ]
    assert driven.failed("monitoring.") == {}


@pytest.mark.slow
def test_what_is_not_asked_for_any_more_goes(driven: StubDriverNode) -> None:
    driven.state(
        {"profiling_counters": None, "monitoring": None}, profiling_tools=None, node_exporter=None, dcgm=None
    )
    assert driven.apply(*ROLES)[0].ok
    assert (
        driven.says(f"ls {FOLDER}/gpuprov.prom /etc/modprobe.d/gpuprov-profiling.conf").count("No such") == 2
    )
    assert driven.apply(*ROLES)[1] == []
