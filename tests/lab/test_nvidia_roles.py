"""NVIDIA's repositories, driver, fabric manager, CUDA, cuDNN, NCCL on a real node, from a mirror of them.

The packages are stubs with the real ones' names, versions, dependencies and what a node looks at; apt, dpkg
and DKMS are real. Tests build on each other: one node goes from fresh to provisioned, switched and broken.
"""

from __future__ import annotations

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
ROLES = ("repositories", "nvidia_driver", "fabric_manager", "cuda_toolkit", "cudnn", "nccl", "package_pins")
STACK = {
    "repository": "nvidia",
    "driver": "570.195.03",
    "cuda": ["12.8", "12.6"],
    "cudnn": "9.15",
    "nccl": "auto",
}
INSTALLED = "dpkg-query -W -f '${db:Status-Abbrev}${Package} ${Version}\\n' | sed -n 's/^[hi]i *//p'"
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
                    "settings": {"kernel": self.node.kernel},
                }
            },
            "repositories": {
                "nvidia": {"url": self.mirror.cuda(self.server.url), "key": key},
                "container-toolkit": {"url": self.mirror.container_toolkit(self.server.url), "key": key},
            },
        }
        (self.folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
        self.lock = build_lock(self.folder / "fleet.yml")
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
