"""A node that installs packages from a mirror of NVIDIA's repositories, and the fleet that declares it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpuprov.locking.build import build_lock
from gpuprov.model.lock import LockedGroup
from gpuprov_lab import Lab
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import MirrorServer
from gpuprov_lab.variants import with_control_groups, with_network_parameters, with_os_release
from tests.lab.node_under_test import NodeUnderTest
from tests.lab.ubuntu_nodes import os_release
from tests.systems import IMAGES

STACK = {
    "repository": "nvidia",
    "driver": "570.195.03",
    "cuda": ["12.8", "12.6"],
    "cudnn": "9.15",
    "nccl": "auto",
}


@dataclass
class MirrorNode(NodeUnderTest):
    """A node and its fleet, which a test locks several times."""

    roles = (
        "preflight",
        "repositories",
        "nvidia_driver",
        "fabric_manager",
        "cuda_toolkit",
        "cudnn",
        "nccl",
        "package_pins",
    )
    areas = ("repositories.", "fabric_manager.", "cuda.", "cudnn.", "nccl.", "pins.", "driver.packages")

    system: str
    ssh: dict[str, Any]
    mirror: nvidia.Mirror
    server: MirrorServer
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def others(self) -> dict[str, str]:
        """URLs of further repositories of the fleet, by id; none unless a subclass has some."""
        return {}

    def state(self, **stack: object) -> LockedGroup:
        """Write the fleet with this stack and lock it."""
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
                **({name: {"url": url, "key": key} for name, url in self.others.items()}),
            },
        }
        (self.folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
        self.lock = build_lock(self.folder / "fleet.yml", previous=getattr(self, "lock", None))
        return self.group


def ubuntu(
    lab: Lab, folder: Path, mirror: nvidia.Mirror, server: MirrorServer, system: str = "ubuntu24.04"
) -> MirrorNode:
    """Return a new node that appears as Ubuntu, with eight simulated H200 GPUs behind NVSwitches."""
    image = IMAGES.get(system)
    steps = [] if image else [with_os_release(os_release(system))]
    [node] = lab.up(1, os=image or "debian12", gpu="h200x8", prepare=steps)
    if image is not None:
        node.run("echo compress=cat >/etc/dracut.conf.d/lab.conf")
    else:
        node.run("echo update_initramfs=no >/etc/initramfs-tools/update-initramfs.conf")
    return MirrorNode(node, folder, system, _profile(lab, folder), mirror, server)


def _profile(lab: Lab, folder: Path) -> dict[str, Any]:
    """Write the profile of a server with eight GPUs; return the fleet's `ssh`."""
    (folder / "profiles").mkdir()
    profile = {"hardware": {"gpu": {"model": "H200 SXM", "count": 8}}}
    (folder / "profiles/eight.yml").write_text(yaml.safe_dump(profile))
    ssh: dict[str, Any] = yaml.safe_load(lab.fleet("eight"))["ssh"]
    return ssh


INSTALLED_RPMS = "rpm -qa --qf '%{NAME} %{EVR}\\n' | grep -v ^gpg-pubkey"


class RockyNode(MirrorNode):
    """A node that plays Rocky Linux 9."""

    @property
    def others(self) -> dict[str, str]:
        """URLs of Docker's, the distribution's and EPEL's repositories, by id."""
        return self.mirror.others(self.server.url)

    @property
    def installed(self) -> dict[str, str]:
        """Installed packages: name → version."""
        return dict(line.split(" ") for line in self.says(INSTALLED_RPMS).splitlines())


def rocky(lab: Lab, folder: Path, mirror: nvidia.Mirror, server: MirrorServer) -> RockyNode:
    """Return a new node that plays Rocky Linux 9, with eight simulated H200 GPUs behind NVSwitches."""
    steps = [with_control_groups, with_network_parameters]
    [node] = lab.up(1, os=IMAGES["rhel9"], gpu="h200x8", prepare=steps)
    return RockyNode(node, folder, "rhel9", _profile(lab, folder), mirror, server)
