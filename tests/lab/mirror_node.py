"""A node that takes its packages from a mirror of NVIDIA's repositories, and the fleet that states it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpuprov.apply.playbook import NodeOutcome
from gpuprov.drift.survey import survey
from gpuprov.lab import Lab, Node
from gpuprov.lab.mirror import nvidia
from gpuprov.lab.mirror.serve import MirrorServer
from gpuprov.lab.variants import with_os_release
from gpuprov.locking.build import build_lock
from gpuprov.model.lock import Lock, LockedGroup
from gpuprov.verify import run_verification
from tests.lab.run_roles import play
from tests.lab.ubuntu_nodes import os_release

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


@dataclass
class Mirrored:
    """A node, the fleet that states it, and ways to lock it and run roles on it."""

    node: Node
    folder: Path
    system: str
    ssh: dict[str, Any]
    mirror: nvidia.Mirror
    server: MirrorServer
    settings: dict[str, Any] = field(default_factory=dict)
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
        return play(self.lock, self.node, self.folder, *(roles or ROLES), check=check, **variables)

    def drift(self) -> dict[str, Any]:
        """What differs, apart from what only a reboot or hardware brings: check -> what is there."""
        [node] = survey(self.lock, [self.node.name])
        return {each.check: each.actual for each in node.drift if each.role in ROLES}

    def says(self, command: str) -> str:
        done = self.node.run(command, check=False)
        return (done.stdout + done.stderr).strip()

    def failed(self) -> set[str]:
        """Checks of these roles that fail under verify's own eyes."""
        [seen] = run_verification(self.lock, [self.node.name]).nodes
        assert seen.checks, seen.message
        areas = ("repositories.", "fabric_manager.", "cuda.", "cudnn.", "nccl.", "pins.", "driver.packages")
        return {check.check for check in seen.failed_checks if check.check.startswith(areas)}

    @property
    def installed(self) -> dict[str, str]:
        return dict(line.split(" ") for line in self.says(INSTALLED).splitlines())


def ubuntu(lab: Lab, folder: Path, mirror: nvidia.Mirror, server: MirrorServer) -> Mirrored:
    """A fresh node that says it is Ubuntu 24.04, with eight simulated H200 behind switches."""
    [node] = lab.up(1, os="debian12", gpu="h200x8", prepare=[with_os_release(os_release("ubuntu24.04"))])
    node.run("echo update_initramfs=no >/etc/initramfs-tools/update-initramfs.conf")
    (folder / "profiles").mkdir()
    profile = {"hardware": {"gpu": {"model": "H200 SXM", "count": 8}}}
    (folder / "profiles/eight.yml").write_text(yaml.safe_dump(profile))
    ssh = yaml.safe_load(lab.fleet("eight"))["ssh"]
    return Mirrored(node, folder, "ubuntu24.04", ssh, mirror, server)
