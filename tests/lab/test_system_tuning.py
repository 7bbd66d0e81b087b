"""Tuning on a real node: the values in new logins and services.

The machine under the lab may forbid higher hard limits and most kernel parameters: nodes get lower limits,
and only kernel parameters of their own network.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov_lab import Lab
from gpuprov_lab.variants import with_network_parameters
from tests.lab.stub_driver_node import StubDriverNode

ROLE = "system_tuning"
KEEPALIVE = "net.ipv4.tcp_keepalive_time"
TUNING = {
    "limits": {"memlock": 4194304, "stack": 67108864, "nofile": 4096},
    "sysctl": {KEEPALIVE: 600},
    "governor": "performance",
    "numa_balancing": False,
    "environment": {"OMP_NUM_THREADS": 8, "MKL_NUM_THREADS": 8, "TF_GPU_THREAD_MODE": "gpu_private"},
}
FILES = "/etc/*/*.d/90-gpuprov.conf /etc/sysctl.d/90-gpuprov.conf"
TREE = "find /etc -type f -not -name '*.lock' | sort | xargs md5sum"


@pytest.fixture(scope="module")
def driven(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> StubDriverNode:
    """A node whose lock states tuning of the system, with huge pages as they are; not applied."""
    [node] = module_lab.up(1, os="debian12", prepare=[with_network_parameters])
    driven = StubDriverNode(module_lab, node, tmp_path_factory.mktemp("tuning"))
    pages = driven.says("grep -o '\\[.*\\]' /sys/kernel/mm/transparent_hugepage/enabled").strip("[]")
    driven.state({"tuning": {**TUNING, "transparent_hugepages": pages}})
    return driven


@pytest.mark.slow
def test_check_says_what_would_change_and_changes_nothing(driven: StubDriverNode) -> None:
    before = driven.says(TREE)
    outcome, changed = driven.apply(ROLE, check=True)
    assert outcome.ok, outcome.failed
    assert "Write the limits and kernel parameters of every boot, login and service" in changed
    assert "Report in check mode which kernel parameters would be set" in changed
    assert driven.says(TREE) == before


def test_fresh_logins_and_services_get_it(driven: StubDriverNode) -> None:
    assert set(driven.drift("tuning.")) == {
        "tuning.limits", "tuning.service_limits", "tuning.sysctl", "tuning.sysctl_at_boot",
        "tuning.environment",
    }  # fmt: skip
    outcome, _ = driven.apply(ROLE)
    assert outcome.ok, outcome.failed
    assert driven.failed("tuning.") == {}
    assert driven.drift("tuning.") == {}
    assert driven.says("ulimit -l; ulimit -s; ulimit -n; echo $OMP_NUM_THREADS") == "4096\n65536\n4096\n8"


def test_second_run_changes_nothing(driven: StubDriverNode) -> None:
    assert driven.apply(ROLE)[1] == []
    assert driven.apply(ROLE, check=True)[1] == []


FAULTS = {
    "tuning.limits": "echo '* soft memlock 64' >/etc/security/limits.d/99-other.conf",
    "tuning.service_limits": "rm /etc/systemd/system.conf.d/90-gpuprov.conf; systemctl daemon-reexec",
    "tuning.sysctl": f"sysctl -w {KEEPALIVE}=7200",
    "tuning.environment": "sed -i s/OMP_NUM_THREADS=8/OMP_NUM_THREADS=1/ /etc/environment",
    "tuning.debugging": "echo 'export CUDA_LAUNCH_BLOCKING=1' >/etc/profile.d/debug.sh",
}


def test_faults_are_seen_by_both_witnesses_and_mended(driven: StubDriverNode) -> None:
    for fault in FAULTS.values():
        driven.node.run(fault)
    assert set(driven.drift("tuning.")) == set(FAULTS)
    assert set(driven.failed("tuning.")) == set(FAULTS)
    outcome, _ = driven.apply(ROLE)
    assert outcome.ok, outcome.failed
    # A site file that is read after gpuprov's is reported and kept.
    assert set(driven.failed("tuning.")) == set(driven.drift("tuning.")) == {"tuning.limits"}
    driven.node.run("rm /etc/security/limits.d/99-other.conf")
    assert driven.failed("tuning.") == {}


def test_everything_comes_back_after_a_reboot(driven: StubDriverNode) -> None:
    driven.reboot()
    assert driven.failed("tuning.") == {}


@pytest.mark.slow
def test_changed_lock_changes_just_that(driven: StubDriverNode) -> None:
    [tuning] = [driven.group.settings["tuning"].value]
    driven.state({"tuning": {**tuning, "environment": {"OMP_NUM_THREADS": 4}}})
    assert driven.apply(ROLE)[1] == ["Set the variables of every login"]
    assert driven.says("echo $OMP_NUM_THREADS $MKL_NUM_THREADS") == "4"
    assert driven.failed("tuning.") == {}


def test_parameter_that_the_kernel_does_not_have_is_refused(driven: StubDriverNode) -> None:
    outcome, changed = driven.apply(ROLE, system_tuning_sysctl={"vm.no_such_thing": "1"})
    assert "this kernel has no parameter vm.no_such_thing" in outcome.failed[0]["msg"]
    assert changed == []


def test_limit_that_would_shut_everybody_out_is_refused(driven: StubDriverNode) -> None:
    outcome, changed = driven.apply(ROLE, system_tuning_limits={"nofile": 2_000_000_000, "stack": 8388608})
    assert "not even root may have the requested limits of nofile" in outcome.failed[0]["msg"]
    assert changed == []


@pytest.mark.slow
def test_nothing_in_the_lock_leaves_nothing_on_the_node(driven: StubDriverNode) -> None:
    driven.state({"tuning": {}})
    assert driven.apply(ROLE)[0].ok
    assert driven.says(f"ls {FILES} 2>/dev/null") == ""
    assert driven.says("grep -c THREADS /etc/environment") == "0"
    assert driven.apply(ROLE)[1] == []


@pytest.mark.slow
def test_a_removed_limits_conf_is_created(lab: Lab, tmp_path: Path) -> None:
    """On Debian 13, whose PAM reads limits.d without it; with that of Debian 12 no login is possible."""
    [node] = lab.up(1, os="debian13")
    driven = StubDriverNode(lab, node, tmp_path)
    driven.state({"tuning": {"limits": {"nofile": 4096}}})
    assert driven.apply(ROLE)[0].ok
    driven.node.run("rm /etc/security/limits.conf")
    assert driven.drift("tuning.") == driven.failed("tuning.") == {}
    assert driven.apply(ROLE)[1] == [
        "Write the limits and kernel parameters of every boot, login and service"
    ]
    assert driven.says("wc -l </etc/security/limits.conf") == "1"
    assert driven.apply(ROLE)[1] == []
