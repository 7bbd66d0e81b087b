"""NVIDIA's repositories, driver, fabric manager, CUDA, cuDNN and NCCL on a real node, from a mirror.

The packages are stubs with the real names, versions, dependencies and probed files; apt, dpkg and DKMS are
real. The tests build on each other: one node is provisioned, switched to other versions and broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuprov.catalog import load
from gpuprov.drift.survey import survey
from gpuprov_lab import Lab
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.key import SigningKey, signing_key
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.mirror.specs import PackageSpec
from tests.lab.marks import slow_ones
from tests.lab.mirror_node import MirrorNode, ubuntu
from tests.lab.node_under_test import INSTALLED, TRANSACTION

SYSTEM = "ubuntu24.04"
BREAK = """
set -e
update-alternatives --install /usr/local/cuda cuda /usr/local/cuda-12.6 126
update-alternatives --set cuda /usr/local/cuda-12.6
systemctl disable --now --quiet nvidia-fabricmanager; systemctl mask nvidia-fabricmanager
apt-get --yes --quiet --allow-change-held-packages remove libcudnn9-headers-cuda-12 libcudnn9-dev-cuda-12
rm /etc/profile.d/gpuprov-cuda.sh /etc/apt/sources.list.d/gpuprov.sources
mv /usr/lib/x86_64-linux-gnu/libnccl.so.2.* /root/
"""
FILES = "find /etc /usr/local /usr/src -type f | sort | xargs md5sum | grep -v ld.so.cache"
SNAPSHOT = f"{INSTALLED}; apt-mark showhold; {FILES}"


@dataclass
class Days:
    """A mirror whose content can change with each build."""

    folder: Path
    key: SigningKey
    tool: str = "1.0"
    unseen: list[str] = field(default_factory=lambda: ["570.211.01"])

    def build(self) -> nvidia.Mirror:
        """Build the mirror with an unrelated tool and all drivers except the unseen ones."""

        def today(folder: str, specs: list[PackageSpec]) -> list[PackageSpec]:
            """Return the packages of a repository without those of later days, with the site's tool."""
            if folder != "ubuntu2404":
                return specs
            known = [spec for spec in specs if not spec.version.startswith(tuple(self.unseen))]
            return [*known, PackageSpec("site-tool", self.tool, "all")]

        return nvidia.build(self.folder, load(), [SYSTEM], key=self.key, change=today)


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Days]:
    with signing_key() as key:
        yield Days(tmp_path_factory.mktemp("mirror"), key)


@pytest.fixture(scope="module")
def driven(module_lab: Lab, days: Days, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MirrorNode]:
    """A node of Ubuntu with the mirror, whose lock states NVIDIA's driver; not applied."""
    mirror = days.build()
    with ExitStack() as stack:
        server = stack.enter_context(served(mirror.root))
        driven = ubuntu(module_lab, tmp_path_factory.mktemp("nvidia"), mirror, server)
        driven.state()
        yield driven


def test_check_says_what_would_change_and_changes_nothing(driven: MirrorNode) -> None:
    before = driven.says(SNAPSHOT)
    outcome, changed = driven.apply(check=True)
    assert outcome.ok, outcome.failed
    assert TRANSACTION in changed
    assert driven.says(SNAPSHOT) == before


def test_a_fresh_node_gets_everything_in_one_run(driven: MirrorNode) -> None:
    outcome, _ = driven.apply()
    assert outcome.ok, outcome.failed
    for name, component in driven.group.components.each():
        assert component.closure.items() <= driven.installed.items(), name
    assert driven.drift() == {}


def test_a_second_run_changes_nothing(driven: MirrorNode) -> None:
    outcome, changed = driven.apply()
    assert outcome.ok, outcome.failed
    assert changed == []


def test_after_a_reboot_the_fabric_is_joined_and_both_witnesses_are_content(driven: MirrorNode) -> None:
    driven.node.reboot()
    [node] = survey(driven.lock, [driven.node.name])
    assert [(each.check, each.actual) for each in node.drift] == []
    assert driven.failed() == {}


def test_both_witnesses_see_what_is_broken_and_apply_mends_it(driven: MirrorNode) -> None:
    driven.node.run(BREAK)
    seen = {
        "repositories.sources",
        "repositories.file",
        "pins.files",
        "fabric_manager.unit",
        "fabric_manager.fabric",
        "cuda.default",
        "cuda.environment",
        "cudnn.packages",
        "pins.hold",
    }
    assert set(driven.drift()) == seen
    assert driven.failed().keys() >= seen | {"cudnn.header", "nccl.library"}
    driven.node.run("mv /root/libnccl.so.2.* /usr/lib/x86_64-linux-gnu/")
    outcome, _ = driven.apply()
    assert outcome.ok, outcome.failed
    assert driven.drift() == {}
    assert driven.failed() == {}


UNATTENDED = """\
Unattended-Upgrade::Origins-Pattern { "origin=NVIDIA"; };
APT::Periodic::Unattended-Upgrade "1";
"""


def test_what_appears_overnight_moves_nothing_of_the_closure_by_itself(
    driven: MirrorNode, days: Days
) -> None:
    driven.node.run("apt-get -q update && apt-get -yq install site-tool unattended-upgrades")
    driven.node.run("cat >/etc/apt/apt.conf.d/99site", input=UNATTENDED)
    held = {name for _, component in driven.group.components.each() for name in component.closure}
    before = {name: driven.installed[name] for name in held}
    days.tool, days.unseen = "2.0", []
    days.build()
    assert "570.211.01" in driven.says("apt-get -q update; apt-cache madison nvidia-open-570")
    said = driven.says("unattended-upgrade --verbose")
    assert driven.installed["site-tool"] == "2.0", said
    assert {name: driven.installed[name] for name in held} == before
    days.tool = "3.0"
    days.build()
    driven.node.run("apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get -yq full-upgrade")
    assert driven.installed["site-tool"] == "3.0"
    assert {name: driven.installed[name] for name in held} == before
    assert driven.failed() == {}


SWITCHES = [("580.95.05", "570"), ("570.195.03", "580")]
"""Driver of a lock, and the branch that it replaces."""


@pytest.mark.parametrize(("driver", "gone"), slow_ones(SWITCHES, SWITCHES[1:]))
def test_a_changed_lock_switches_branches_in_one_transaction(
    driven: MirrorNode, driver: str, gone: str
) -> None:
    driven.state(driver=driver)
    transactions = driven.says("grep -c ^Start-Date /var/log/apt/history.log")
    outcome, _ = driven.apply("repositories", "nvidia_driver", "fabric_manager", "package_pins")
    assert outcome.ok, outcome.failed
    assert int(driven.says("grep -c ^Start-Date /var/log/apt/history.log")) == int(transactions) + 1
    assert driven.drift() == {}
    versions = {name: full for name, full in driven.installed.items() if full.startswith(gone)}
    assert versions == {}
    assert "nvidia-fabricmanager" in " ".join(driven.installed)
    assert driven.says("dkms status").startswith(f"nvidia/{driver}, ")
    assert f"Pin: version {gone}." not in driven.says("cat /etc/apt/preferences.d/*")


def test_a_killed_transaction_is_finished_by_the_next_apply(driven: MirrorNode) -> None:
    driver, gone = next(
        each for each in SWITCHES if not driven.says("dkms status").startswith(f"nvidia/{each[0]}")
    )
    driven.state(driver=driver)
    driven.kill_dpkg_after(lines=5)
    outcome, _ = driven.apply("preflight", "repositories", "nvidia_driver")
    assert [each["role"] for each in outcome.failed] == ["nvidia_driver"]
    outcome, _ = driven.apply("preflight", "repositories", "nvidia_driver", "package_pins")
    assert outcome.ok, outcome.failed
    assert driven.says("dpkg --audit") == ""
    assert [name for name, full in driven.installed.items() if full.startswith(f"{gone}.")] == []
    assert driven.drift() == {}


@pytest.mark.slow
def test_the_pins_of_a_removed_driver_are_lifted(driven: MirrorNode) -> None:
    """Start from the state after a kill between removing one pinning package and installing the next."""
    preferences = "/etc/apt/preferences.d/nvidia-driver-pin"
    driver = driven.group.components.driver
    [pinning] = [name for name in driver.closure if "-pinning-" in name]
    driven.node.run(f"dpkg --remove --force-depends --force-hold {pinning}")
    assert f"Pin: version {driver.branch}" in driven.says(f"cat {preferences}")
    driven.state(driver="570.195.03")
    outcome, _ = driven.apply("preflight", "repositories", "nvidia_driver", "package_pins")
    assert outcome.ok, outcome.failed
    assert "Pin: version 580." not in driven.says(f"cat {preferences}")
    assert driven.says("dpkg-query -W -f '${db:Status-Abbrev}${Package}\\n' | grep ^rc | grep nvidia") == ""
    assert driven.drift() == {}


@pytest.mark.slow
def test_a_toolkit_that_the_lock_no_longer_has_goes_away(driven: MirrorNode) -> None:
    driven.settings = {"nccl": {"NCCL_SOCKET_IFNAME": "eth0"}}
    driven.state(cuda="12.6")
    # The resolver chooses older packages for this toolkit than for the other.
    outcome, _ = driven.apply("cuda_toolkit", "nccl", "package_pins", packages_allow_downgrade=True)
    assert outcome.ok, outcome.failed
    assert "cuda-toolkit-12-8" not in driven.installed
    assert driven.says("readlink -f /usr/local/cuda") == "/usr/local/cuda-12.6"
    assert "NCCL_SOCKET_IFNAME=eth0" in driven.says("cat /etc/nccl.conf")
    assert driven.drift() == {}


@pytest.mark.slow
def test_cudnn_for_another_cuda_replaces_the_one_before(driven: MirrorNode) -> None:
    """Change the major version of CUDA: cuDNN's packages for both exclude each other."""
    driven.state(driver="580.95.05", cuda="13.0")
    outcome, _ = driven.apply(packages_allow_downgrade=True)
    assert outcome.ok, outcome.failed
    cudnn = sorted(name for name in driven.installed if "cudnn9" in name)
    assert cudnn == ["libcudnn9-cuda-13", "libcudnn9-dev-cuda-13", "libcudnn9-headers-cuda-13"]
    assert driven.drift() == {}


def test_a_foreign_entry_for_the_same_repository_is_set_aside(driven: MirrorNode) -> None:
    place = "/etc/apt/sources.list.d/cuda-ubuntu2404-x86_64.list"
    url = driven.group.repositories["nvidia"].url
    driven.node.run(f"echo 'deb [signed-by=/usr/share/keyrings/other.gpg] {url} /' >{place}")
    unread = {"repositories.sources", "repositories.foreign", "pins.candidates"}
    assert set(driven.drift()) == unread  # apt reads no source at all
    outcome, changed = driven.apply("repositories")
    assert outcome.ok, outcome.failed
    assert changed == ["Rename other files that configure the same repositories"]
    assert driven.says(f"ls {place}*") == f"{place}.disabled"
    assert driven.says("apt-get indextargets >/dev/null") == ""
