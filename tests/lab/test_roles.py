"""The roles on a real node: Debian's packages and DKMS, with a stub in place of the compiler.

The tests build on each other: one node is provisioned, broken, corrected and changed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.apply.context import RunContext
from gpuprov.apply.playbook import NodeOutcome, run_playbook
from gpuprov.locking.build import build_lock
from gpuprov_lab import Lab
from tests.lab.node_under_test import TRANSACTION, NodeUnderTest, with_settings
from tests.lab.stub_compiler import ERROR, play_compiler

SAY = "Write the units that set GPUs at boot"
SET = "Set the clocks, now if the driver answers and at every boot"
UNATTENDED = "Exclude the packages from unattended upgrades, and record this role's holds"
STATE = "nvidia-smi --query-gpu=persistence_mode,clocks.applications.graphics --format=csv,noheader,nounits"
# State of an untouched node: packages, holds, and files of gpuprov or packages outside their caches.
SNAPSHOT = """\
dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n' | grep -v '^[ru]'
apt-mark showhold
find /etc/apt /etc/modprobe.d /etc/systemd /usr/local /usr/src -type f | sort | xargs md5sum
"""


class DebianNode(NodeUnderTest):
    """A node with Debian's own archive as its only source."""

    roles = ("preflight", "repositories", "nvidia_driver", "gpu_settings", "package_pins")

    def apply(
        self, *roles: str, check: bool = False, settings: dict[str, Any] | None = None, **variables: Any
    ) -> tuple[NodeOutcome, list[str]]:
        """Run roles under the lock with these settings changed for this run; return outcome and changed
        tasks.
        """
        locked = self.group
        self.group = with_settings(locked, settings or {})
        try:
            return super().apply(*roles, check=check, **variables)
        finally:
            self.group = locked

    def reboot_by_playbook(self) -> NodeOutcome:
        """Reboot the node as `gpuprov apply --reboot` does."""
        run = RunContext(self.lock, Path(tempfile.mkdtemp(dir=self.folder)))
        return run_playbook("reboot", {self.node.name: {"gpuprov_reboot": True}}, run)[self.node.name]


@pytest.fixture(scope="module")
def fixture(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> DebianNode:
    """A node with a lock from Debian's archive, and a fake compiler; not applied."""
    [node] = module_lab.up(1, os="debian12", gpu="a100x4")
    folder = tmp_path_factory.mktemp("roles")
    fleet = yaml.safe_load(module_lab.fleet("hgx-a100-4"))
    fleet["groups"]["debian12"]["stack"] = {"repository": "distribution"}
    (folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
    fixture = DebianNode(node, folder)
    fixture.lock = build_lock(folder / "fleet.yml", previous=None, narrate=lambda _: None)
    play_compiler(node, fixture.group.components.driver.version)
    return fixture


def test_check_says_what_would_change_and_changes_nothing(fixture: DebianNode) -> None:
    before = fixture.says(SNAPSHOT)
    outcome, changed = fixture.apply(check=True)
    assert outcome.ok, outcome.failed
    assert TRANSACTION in changed
    assert SAY in changed
    assert fixture.says(SNAPSHOT) == before


@pytest.mark.slow
def test_a_module_that_does_not_build_leaves_the_node_as_it_was(fixture: DebianNode) -> None:
    assert fixture.apply("repositories")[0].ok
    before = fixture.says(SNAPSHOT)
    fixture.node.run("touch /root/broken-compiler")
    outcome, _ = fixture.apply()
    fixture.node.run("rm /root/broken-compiler")
    [failed] = outcome.failed
    assert f"does not build for kernel {fixture.node.kernel}: {ERROR}" in failed["msg"]
    assert failed["msg"].endswith("the node is as it was before")
    assert fixture.says("dpkg --audit") == ""
    assert fixture.says(SNAPSHOT) == before


def test_a_fresh_node_gets_everything_in_one_run(fixture: DebianNode) -> None:
    outcome, _ = fixture.apply()
    assert outcome.ok, outcome.failed
    group = fixture.group
    driver = group.components.driver
    assert fixture.says(f"modinfo -k {fixture.node.kernel} -F version nvidia-current") == driver.version
    assert set(fixture.says("apt-mark showhold").split()) == set(driver.closure)
    assert fixture.says("systemctl is-enabled gpuprov-gpu-clocks nvidia-persistenced") == "enabled\nenabled"


def test_the_second_run_changes_nothing(fixture: DebianNode) -> None:
    outcome, changed = fixture.apply()
    assert outcome.ok, outcome.failed
    assert changed == []
    assert outcome.changed == 0


def test_a_reboot_brings_driver_persistence_and_clocks(fixture: DebianNode) -> None:
    boot = fixture.node.boot_id()
    outcome = fixture.reboot_by_playbook()
    assert outcome.ok, outcome.failed
    assert fixture.node.boot_id() != boot
    assert fixture.says("systemctl is-system-running --wait") == "running"
    assert fixture.says(STATE).splitlines() == ["Enabled, 1410"] * 4


FAULTS = {
    "Hold the packages, and release former holds of this role": "apt-mark unhold libcuda1",
    "Write the blacklist, and the choice of GRUB's default kernel": "rm /etc/modprobe.d/gpuprov-nouveau.conf",
    "Run the daemon, now if the driver answers and at every boot": "nvidia-smi -pm 0",
    SET: "nvidia-smi -ac 1593,1095",
    "Compile and install the module": "rm /lib/modules/*/updates/dkms/nvidia-current.ko*",
    UNATTENDED: "rm /etc/apt/apt.conf.d/52gpuprov-pins",
}


def test_each_fault_is_mended_by_its_own_task_and_no_other(fixture: DebianNode) -> None:
    for fault in FAULTS.values():
        fixture.node.run(fault)
    outcome, changed = fixture.apply()
    assert outcome.ok, outcome.failed
    assert set(changed) == set(FAULTS)
    assert fixture.says(STATE).splitlines() == ["Enabled, 1410"] * 4
    assert fixture.apply()[1] == []


def test_a_unit_that_somebody_disabled_is_enabled_again(fixture: DebianNode) -> None:
    fixture.node.run("systemctl disable --now gpuprov-gpu-clocks")
    assert fixture.apply("gpu_settings")[0].ok
    assert fixture.says("systemctl is-enabled gpuprov-gpu-clocks") == "enabled"
    assert fixture.says(STATE).splitlines() == ["Enabled, 1410"] * 4


def test_a_changed_clock_changes_just_that(fixture: DebianNode) -> None:
    _, changed = fixture.apply(settings={"clocks": {"graphics": 1095, "memory": 1593}})
    assert changed == [SAY, SET]
    assert fixture.says(STATE).splitlines() == ["Enabled, 1095"] * 4


def test_no_clocks_in_the_lock_leave_none_on_the_node(fixture: DebianNode) -> None:
    assert fixture.apply("gpu_settings", settings={"clocks": None})[0].ok
    assert fixture.says("systemctl cat gpuprov-gpu-clocks").startswith("No files found")
    default = fixture.says(STATE.replace(".applications.", ".default_applications."))
    assert fixture.says(STATE) == default
    assert "1410" not in default
    assert fixture.apply("gpu_settings", settings={"clocks": None})[1] == []


def test_a_package_that_is_pinned_no_more_is_released_and_holds_of_others_stay(fixture: DebianNode) -> None:
    fixture.node.run("apt-mark hold less")
    group = fixture.group
    fewer = {name: version for name, version in group.components.driver.closure.items() if name != "libcuda1"}
    assert fixture.apply("package_pins", package_pins_packages=fewer)[0].ok
    held = fixture.says("apt-mark showhold").split()
    assert "libcuda1" not in held
    assert "less" in held
    assert fixture.apply("package_pins")[0].ok
    assert set(fixture.says("apt-mark showhold").split()) == {*group.components.driver.closure, "less"}


def test_a_half_installed_package_is_finished(fixture: DebianNode) -> None:
    fixture.node.run("cd /tmp && apt-get -q download hello && dpkg --unpack hello_*.deb")
    assert fixture.says("dpkg --audit") != ""
    outcome, changed = fixture.apply("preflight")
    assert outcome.ok, outcome.failed
    assert changed == ["Configure half-configured packages", "Install missing dependencies"]
    assert fixture.says("dpkg --audit") == ""


def test_a_package_that_cannot_be_configured_is_named_with_dpkgs_reason(fixture: DebianNode) -> None:
    script = "/var/lib/dpkg/info/hello.postinst"
    fixture.node.run("cd /tmp && apt-get -q download hello && dpkg --unpack hello_*.deb")
    fixture.node.run(f"printf '#!/bin/sh\\nexit 7\\n' >{script} && chmod 755 {script}")
    outcome, _ = fixture.apply("preflight")
    fixture.node.run(f"rm {script} && dpkg --configure hello")
    [failed] = outcome.failed
    assert failed["msg"].count("dpkg: error processing package hello (--configure): ") == 1
    for part in ("returned error exit status 7", "`dpkg --audit` lists them"):
        assert part in failed["msg"]


LOCKED = """\
import fcntl, time
lock = open("/var/lib/dpkg/lock-frontend", "r+")
fcntl.lockf(lock, fcntl.LOCK_EX)
time.sleep(60)
"""


def test_everything_against_a_node_is_said_at_once(fixture: DebianNode) -> None:
    fixture.node.run("cat >/root/locker.py", input=LOCKED)
    fixture.node.run("systemd-run --quiet --unit=locker python3 /root/locker.py")
    fixture.node.run("touch /usr/bin/nvidia-uninstall")
    outcome, _ = fixture.apply(
        "preflight", preflight_wait=1, preflight_os="ubuntu24.04", preflight_arch="aarch64"
    )
    fixture.node.run("systemctl stop locker; rm /usr/bin/nvidia-uninstall")
    [failed] = outcome.failed
    for part in ("runs debian12", "is x86_64", "python3", "for 1 s", "nvidia-uninstall"):
        assert part in failed["msg"]
