"""NVIDIA's repositories, driver, fabric manager, CUDA, cuDNN, NCCL on a real node, from a mirror of them.

The packages are stubs with the real ones' names, versions, dependencies and what a node looks at; apt, dpkg
and DKMS are real. Tests build on each other: one node goes from fresh to provisioned, switched and broken.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.catalog import load
from gpuprov.lab import Lab, Node
from gpuprov.lab.mirror import nvidia
from gpuprov.lab.mirror.serve import MirrorServer, served
from gpuprov.lab.variants import with_os_release
from gpuprov.lock import Lock, LockedGroup
from gpuprov.locking import build_lock
from gpuprov.playbook import NodeOutcome, Options, run_playbook
from gpuprov.survey import survey
from gpuprov.verify import run as verify

UBUNTU = """\
PRETTY_NAME="Ubuntu 24.04.3 LTS"
NAME="Ubuntu"
VERSION_ID="24.04"
VERSION="24.04.3 LTS (Noble Numbat)"
VERSION_CODENAME=noble
ID=ubuntu
ID_LIKE=debian
UBUNTU_CODENAME=noble
"""
ROLES = (
    "preflight",
    "repositories",
    "nvidia_driver",
    "fabric_manager",
    "cuda_toolkit",
    "cudnn",
    "nccl",
    "package_pins",
)
STACK = {
    "repository": "nvidia",
    "driver": "570.195.03",
    "cuda": ["12.8", "12.6"],
    "cudnn": "9.15",
    "nccl": "auto",
}
INSTALLED = "dpkg-query -W -f '${db:Status-Abbrev}${Package} ${Version}\\n' | sed -n 's/^[hi]i *//p'"
BREAK = """
set -e
update-alternatives --install /usr/local/cuda cuda /usr/local/cuda-12.6 126
update-alternatives --set cuda /usr/local/cuda-12.6
systemctl disable --now --quiet nvidia-fabricmanager
apt-get --yes --quiet --allow-change-held-packages remove libcudnn9-headers-cuda-12 libcudnn9-dev-cuda-12
rm /etc/profile.d/gpuprov-cuda.sh /etc/apt/sources.list.d/gpuprov.sources
mv /usr/lib/x86_64-linux-gnu/libnccl.so.2.* /root/
"""
FILES = "find /etc /usr/local /usr/src -type f | sort | xargs md5sum | grep -v ld.so.cache"
SNAPSHOT = f"{INSTALLED}; apt-mark showhold; {FILES}"


@dataclass
class Driven:
    """A node, the fleet that states it, and ways to lock it and run roles on it."""

    node: Node
    folder: Path
    system: str
    ssh: dict[str, Any]
    mirror: nvidia.Mirror
    server: MirrorServer
    settings: dict[str, Any] = field(default_factory=dict)
    runs: int = 0
    lock: Lock = field(init=False)

    def state(self, **stack: object) -> LockedGroup:
        """Write the fleet with this stack and lock it, as a person does."""
        key = str(self.mirror.key)
        fleet = {
            "ssh": self.ssh,
            "groups": {
                "train": {
                    "profile": "eight",
                    "os": self.system,
                    "hosts": {self.node.name: self.node.address},
                    "stack": {**STACK, **stack},
                    "settings": {"kernel": self.node.kernel, **self.settings},
                }
            },
            "repositories": {
                "nvidia": {"url": self.mirror.cuda(self.server.url), "key": key},
                "container-toolkit": {"url": self.mirror.container_toolkit(self.server.url), "key": key},
            },
        }
        (self.folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
        self.lock = build_lock(self.folder / "fleet.yml", previous=getattr(self, "lock", None))
        return self.group

    @property
    def group(self) -> LockedGroup:
        return self.lock.groups["train"]

    def apply(self, *roles: str, check: bool = False, **variables: Any) -> tuple[NodeOutcome, list[str]]:
        """Run roles; the outcome, and the names of the tasks that changed."""
        events: list[dict[str, Any]] = []
        self.runs += 1
        run = self.folder / f"run{self.runs}"
        run.mkdir()
        nodes = {self.node.name: {"gpuprov_roles": list(roles or ROLES), **variables}}
        options = Options(check=check)
        outcome = run_playbook("site", self.lock, nodes, run, options=options, listen=events.append)
        changed = [event["task"] for event in events if event.get("status") == "changed"]
        return outcome[self.node.name], changed

    def drift(self) -> dict[str, Any]:
        """What differs, apart from what only a reboot or hardware brings: check -> what is there."""
        [node] = survey(self.lock, [self.node.name])
        return {each.check: each.actual for each in node.drift if each.role in ROLES}

    def says(self, command: str) -> str:
        done = self.node.run(command, check=False)
        return (done.stdout + done.stderr).strip()

    def failed(self) -> set[str]:
        """Checks of these roles that fail under verify's own eyes."""
        [seen] = verify(self.lock, [self.node.name]).nodes
        assert seen.checks, seen.message
        areas = ("repositories.", "fabric_manager.", "cuda.", "cudnn.", "nccl.", "pins.", "driver.packages")
        return {check.check for check in seen.failed_checks if check.check.startswith(areas)}

    @property
    def installed(self) -> dict[str, str]:
        return dict(line.split(" ") for line in self.says(INSTALLED).splitlines())


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> nvidia.Mirror:
    return nvidia.build(tmp_path_factory.mktemp("mirror"), load(), ["debian12", "ubuntu24.04"])


@pytest.fixture(scope="module")
def server(mirror: nvidia.Mirror) -> Iterator[MirrorServer]:
    with served(mirror.root) as server:
        yield server


@pytest.fixture(scope="module")
def driven(
    module_lab: Lab, mirror: nvidia.Mirror, server: MirrorServer, tmp_path_factory: pytest.TempPathFactory
) -> Driven:
    """A fresh node that says it is Ubuntu 24.04, with eight simulated H200 behind switches."""
    [node] = module_lab.up(1, os="debian12", gpu="h200x8", prepare=[with_os_release(UBUNTU)])
    node.run("echo update_initramfs=no >/etc/initramfs-tools/update-initramfs.conf")
    folder = tmp_path_factory.mktemp("nvidia")
    (folder / "profiles").mkdir()
    profile = {"hardware": {"gpu": {"model": "H200 SXM", "count": 8}}}
    (folder / "profiles/eight.yml").write_text(yaml.safe_dump(profile))
    ssh = yaml.safe_load(module_lab.fleet("eight"))["ssh"]
    driven = Driven(node, folder, "ubuntu24.04", ssh, mirror, server)
    driven.state()
    return driven


def test_check_says_what_would_change_and_changes_nothing(driven: Driven) -> None:
    before = driven.says(SNAPSHOT)
    outcome, changed = driven.apply(check=True)
    assert outcome.ok, outcome.failed
    assert "Say what would be installed and removed, as --check cannot try" in changed
    assert driven.says(SNAPSHOT) == before


def test_a_fresh_node_gets_everything_in_one_run(driven: Driven) -> None:
    outcome, _ = driven.apply()
    assert outcome.ok, outcome.failed
    for name, component in driven.group.components.each():
        assert component.closure.items() <= driven.installed.items(), name
    assert driven.drift() == {}


def test_a_second_run_changes_nothing(driven: Driven) -> None:
    outcome, changed = driven.apply()
    assert outcome.ok, outcome.failed
    assert changed == []


def test_after_a_reboot_the_fabric_is_joined_and_both_witnesses_are_content(driven: Driven) -> None:
    driven.node.reboot()
    [node] = survey(driven.lock, [driven.node.name])
    assert [(each.check, each.actual) for each in node.drift] == []
    assert driven.failed() == set()


def test_both_witnesses_see_what_is_broken_and_apply_mends_it(driven: Driven) -> None:
    driven.node.run(BREAK)
    seen = {
        "repositories.sources",
        "fabric_manager.unit",
        "fabric_manager.fabric",
        "cuda.default",
        "cuda.environment",
        "cudnn.packages",
        "pins.hold",
    }
    assert set(driven.drift()) == seen
    assert driven.failed() >= seen | {"cudnn.header", "nccl.library"}
    driven.node.run("mv /root/libnccl.so.2.* /usr/lib/x86_64-linux-gnu/")
    outcome, _ = driven.apply()
    assert outcome.ok, outcome.failed
    assert driven.drift() == {}
    assert driven.failed() == set()


def test_a_full_upgrade_moves_nothing_of_the_closure(driven: Driven) -> None:
    before = driven.installed
    driven.node.run("apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get -yq full-upgrade")
    held = {name for _, component in driven.group.components.each() for name in component.closure}
    assert {name: driven.installed[name] for name in held} == {name: before[name] for name in held}


@pytest.mark.parametrize(
    ("mood", "says"),
    [("gone", "does not have what the lock names"), ("broken", "half synced|does not answer as it should")],
)
def test_a_bad_day_of_the_mirror_leaves_the_node_as_it_was(driven: Driven, mood: str, says: str) -> None:
    driven.state(driver="580.95.05")
    driven.node.run("rm -f /var/cache/apt/archives/*580.95.05*")  # lab nodes share what apt fetched
    before = driven.installed
    driven.server.mood = mood
    try:
        outcome, _ = driven.apply("nvidia_driver")
    finally:
        driven.server.mood = "well"
    assert outcome.unreachable is None
    [failed] = outcome.failed
    assert re.search(f"^NVIDIA driver 580.95.05 could not be installed: .*({says})", failed["msg"])
    assert driven.installed == before
    assert driven.says("dpkg --audit") == ""


@pytest.mark.parametrize(("driver", "gone"), [("580.95.05", "570"), ("570.195.03", "580")])
def test_a_changed_lock_switches_branches_in_one_transaction(driven: Driven, driver: str, gone: str) -> None:
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


KILL = "tail -n0 -F /var/log/dpkg.log | grep -q -m1 half-installed; pkill -9 -x apt-get; pkill -9 -x dpkg"


def test_a_killed_transaction_is_finished_by_the_next_apply(driven: Driven) -> None:
    driven.state(driver="580.95.05")
    driven.node.run(f"systemd-run --quiet --unit=killer sh -c {shlex.quote(KILL)}")
    outcome, _ = driven.apply("preflight", "repositories", "nvidia_driver")
    assert [each["role"] for each in outcome.failed] == ["nvidia_driver"]
    outcome, _ = driven.apply("preflight", "repositories", "nvidia_driver", "package_pins")
    assert outcome.ok, outcome.failed
    assert driven.says("dpkg --audit") == ""
    assert [name for name, full in driven.installed.items() if full.startswith("570.")] == []
    assert driven.drift() == {}


def test_a_toolkit_that_the_lock_no_longer_has_goes_away(driven: Driven) -> None:
    driven.settings = {"nccl": {"NCCL_SOCKET_IFNAME": "eth0"}}
    driven.state(cuda="12.6")
    outcome, _ = driven.apply("cuda_toolkit", "nccl", "package_pins")
    assert outcome.ok, outcome.failed
    assert "cuda-toolkit-12-8" not in driven.installed
    assert driven.says("readlink -f /usr/local/cuda") == "/usr/local/cuda-12.6"
    assert "NCCL_SOCKET_IFNAME=eth0" in driven.says("cat /etc/nccl.conf")
    assert driven.drift() == {}


def test_a_foreign_entry_for_the_same_repository_is_set_aside(driven: Driven) -> None:
    place = "/etc/apt/sources.list.d/cuda-ubuntu2404-x86_64.list"
    url = driven.group.repositories["nvidia"].url
    driven.node.run(f"echo 'deb [signed-by=/usr/share/keyrings/other.gpg] {url} /' >{place}")
    outcome, changed = driven.apply("repositories")
    assert outcome.ok, outcome.failed
    assert changed == ["Set files aside that name the same repositories"]
    assert driven.says(f"ls {place}*") == f"{place}.disabled"
    assert driven.says("apt-get indextargets >/dev/null") == ""


def test_a_rotated_key_is_told_and_a_new_lock_mends_it(driven: Driven) -> None:
    driven.settings = {}
    before = driven.installed
    nvidia.build(driven.mirror.root, load(), ["ubuntu24.04"])
    outcome, _ = driven.apply("nccl", nccl_packages={"libnccl2": "another"})
    [failed] = outcome.failed
    assert "the signature of the package repository does not hold" in failed["msg"]
    assert driven.installed == before
    driven.state(cuda="12.6", nccl="2.29")
    outcome, _ = driven.apply("repositories", "nccl", "package_pins")
    assert outcome.ok, outcome.failed
    assert driven.drift() == {}
