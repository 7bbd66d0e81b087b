"""Nodes of Molecule scenarios that install NVIDIA's packages from a mirror.

python -m tests.lab.molecule_nodes up|down NAME    # in the scenario's folder, as molecule/mirrored does
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpuprov.catalog import load
from gpuprov_lab import Lab, Node
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.variants import with_control_groups, with_os_release
from tests.lab.command_line import gpuprov
from tests.lab.ubuntu_nodes import os_release


@dataclass(frozen=True)
class Scenario:
    """An operating system and its consecutive stacks; converge applies the last one."""

    system: str
    stacks: tuple[dict[str, Any], ...]
    settings: dict[str, Any] = field(default_factory=dict)


LIBRARIES = {"cuda": ["12.8", "12.6"], "cudnn": "9.15", "nccl": "auto"}
SCENARIOS = {
    "nvidia-repo": Scenario("ubuntu24.04", ({"driver": "570.195.03", **LIBRARIES},)),
    "upgrade": Scenario("ubuntu24.04", ({"driver": "570.195.03"}, {"driver": "580.95.05"})),
    "container": Scenario(
        "debian12",
        ({"driver": "580.95.05", "docker": "auto", "container_toolkit": "1.19"},),
        {"containers": {"shm_size": "1g", "cgroup_driver": "cgroupfs"}},
    ),
}


def up(name: str, folder: Path) -> None:
    """Start the node, and write its lock and inventory into the folder."""
    scenario = SCENARIOS[name]
    lab = Lab(f"molecule-{name}")
    steps = [with_control_groups]
    if scenario.system.startswith("ubuntu"):
        steps.append(with_os_release(os_release(scenario.system)))
    [node] = lab.up(1, gpu="h200x8", prepare=steps)
    node.run("echo update_initramfs=no >/etc/initramfs-tools/update-initramfs.conf")
    place = place_of(name)
    mirror = nvidia.build(place, load(), [scenario.system])
    shutil.copytree(place, node.root / place.relative_to("/"))
    for number, stack in enumerate(scenario.stacks):
        if number:
            gpuprov(folder, "apply", "--reboot", "--yes")
        write(folder, lab, node, scenario, stack, mirror)
        gpuprov(folder, "lock")
    gpuprov(folder, "inventory", "generate", "nodes")


def write(
    folder: Path, lab: Lab, node: Node, scenario: Scenario, stack: dict[str, Any], mirror: nvidia.Mirror
) -> None:
    """Write the fleet and the profile of its machine."""
    (folder / "profiles").mkdir(exist_ok=True)
    profile = {"hardware": {"gpu": {"model": "H200 SXM", "count": 8}}}
    (folder / "profiles/eight.yml").write_text(json.dumps(profile))
    group = {
        "profile": "eight",
        "os": scenario.system,
        "hosts": {node.name: node.address},
        "stack": {"repository": "nvidia", **stack},
        "settings": {"kernel": node.kernel, "persistence": True, **scenario.settings},
    }
    repositories = {name: {"url": url, "key": str(mirror.key)} for name, url in mirror.urls().items()}
    ssh = yaml.safe_load(lab.fleet("eight"))["ssh"]
    fleet = {"ssh": ssh, "groups": {"nodes": group}, "repositories": repositories}
    (folder / "fleet.yml").write_text(json.dumps(fleet))


def place_of(name: str) -> Path:
    """Return the mirror's path, the same on this machine and on the node: a lock has one address for both."""
    return Path("/var/tmp") / f"gpuprov-molecule-{name}"


def down(name: str) -> None:
    """Remove the lab and the mirror."""
    Lab(f"molecule-{name}").down()
    shutil.rmtree(place_of(name), ignore_errors=True)


if __name__ == "__main__":
    verb, scenario_name = sys.argv[1:]
    if verb == "up":
        up(scenario_name, Path.cwd())
    else:
        down(scenario_name)
