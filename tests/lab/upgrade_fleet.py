"""A fleet for upgrades: nodes with a driver, and locks of two versions of one branch.

`provisioned`: both versions come from Debian's archive, and a stub replaces the compiler. `mirrored`: both
come from a mirror of NVIDIA's repository with stubs that build at once. DKMS, apt, reboots and SSH are real.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuprov.locking.build import build_lock
from gpuprov.model.lock import write_lock
from gpuprov_lab import Lab, Node
from tests.lab.command_line import gpuprov, start
from tests.lab.provisioned_node import NEWER, OLDER, provisioned_image

MIRRORED = ("580.95.05", "580.126.16")
# By then all other packages are installed, and apt would read Debian's lists for seconds each time.
MIRROR_ALONE = "rm /etc/apt/sources.list.d/debian.sources && apt-get -q update"
ROLLOUT: dict[str, Any] = {"settle_s": 20}


@dataclass(frozen=True)
class Kind:
    """Nodes of one group: their name, and the machine that is simulated."""

    name: str
    machine: str
    gpu: dict[str, Any]
    settings: dict[str, Any]
    count: int


SWITCHED = Kind(
    "train", "h200x8", {"model": "H200 SXM", "count": 8}, {"clocks": {"graphics": 1980, "memory": 3201}}, 2
)
JOINED = Kind(
    "infer",
    "a100x4",
    {"model": "A100 SXM4 80GB", "count": 4, "nvlink": True},
    {"clocks": {"graphics": 1410, "memory": 1593}},
    2,
)
SINGLE = Kind("dev", "t4x1", {"model": "Tesla T4", "count": 1}, {}, 2)


@dataclass(frozen=True)
class Fleet:
    """Nodes, and a folder with the locks of both versions; `fleet.lock.yml` is the lock that nodes have."""

    nodes: list[Node]
    folder: Path

    def gpuprov(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run gpuprov with any exit code."""
        return gpuprov(self.folder, *words, code=None)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start gpuprov without waiting for it."""
        return start(self.folder, *words)

    def upgrade(self, version: str, *words: str, **rollout: Any) -> subprocess.CompletedProcess[str]:
        """Upgrade to one of the two locks with these rollout rules."""
        return self.gpuprov("upgrade", "--to", self.lock(version, **rollout), "--yes", "-o", "json", *words)

    def lock(self, version: str, **rollout: Any) -> str:
        """Write rollout rules into a lock; return its file name."""
        name = f"{version}.lock.yml"
        plain = yaml.safe_load((self.folder / name).read_text())
        plain["rollout"] = ROLLOUT | rollout
        (self.folder / name).write_text(yaml.safe_dump(plain, sort_keys=False))
        return name

    def ends(self, done: subprocess.CompletedProcess[str]) -> dict[str, str]:
        """Return each node's final lock from an upgrade's JSON output; empty if no node was moved."""
        nodes = json.loads(done.stdout)["nodes"] if done.stdout.strip() else []
        return {node["name"]: node["stands"] for node in nodes}

    def wrong(self, lock: str = "fleet.lock.yml") -> dict[str, Any]:
        """Return node → failed checks, or the error, of a verification under a lock."""
        done = self.gpuprov("verify", "--lock", lock, "-o", "json")
        assert done.stdout, done.stderr
        return {
            node["name"]: [check["check"] for check in node["checks"] if check["status"] == "failed"]
            or node["message"]
            for node in json.loads(done.stdout)["nodes"]
            if node["status"] != "passed"
        }

    def loaded(self) -> dict[str, str]:
        """Return node → version of the loaded module."""
        command = "grep -oE '[0-9]{3}[.][.0-9]+' /proc/driver/nvidia/version | head -1"
        return {node.name: node.run(command, check=False).stdout.strip() for node in self.nodes}


def provisioned(lab: Lab, folder: Path, count: int, prepare: Sequence[Callable[[Path], None]] = ()) -> Fleet:
    """Start nodes that have the newer driver, with a simulated compiler; `prepare` as for `Lab.up`."""
    names = [f"node{number}" for number in range(1, count + 1)]
    nodes = lab.up(gpu="a100x4", image=provisioned_image(), names=names, prepare=prepare)
    return _brought(lab, folder, nodes)


def compiled(lab: Lab, folder: Path) -> Fleet:
    """Make a node that has the newer driver, with the distribution's compiler: minutes for each module."""
    return _brought(lab, folder, lab.up(1, gpu="a100x4", names=["node1"]))


def _brought(lab: Lab, folder: Path, nodes: list[Node]) -> Fleet:
    """Return a fleet of nodes that were brought to the older of two locks."""
    fleet = yaml.safe_load(lab.fleet("hgx-a100-4"))
    [group] = fleet["groups"].values()
    # A node that compiles for itself can be the only one to fail.
    group["stack"] = {"repository": "distribution", "module_build": "dkms"}
    write_locks(folder, fleet, (NEWER, OLDER))
    made = Fleet(nodes, folder)
    apply(made)
    return made


def mirrored(
    lab: Lab, folder: Path, kinds: Sequence[Kind], repositories: dict[str, Any], image: str
) -> Fleet:
    """Return nodes with the first of the mirror's two drivers: one of each kind is provisioned and saved.

    Args:
        repositories: the mirror's repositories in the format of a fleet file.
        image: prefix of the saved images' names; the caller drops them.
    """
    for kind in kinds:
        [node] = lab.up(1, gpu=kind.machine, names=[f"{kind.name}1"])
        node.run("echo update_initramfs=no >/etc/initramfs-tools/update-initramfs.conf")
        profile = {"hardware": {"gpu": kind.gpu}, "settings": {"persistence": True, **kind.settings}}
        (folder / "profiles").mkdir(exist_ok=True)
        (folder / "profiles" / f"{kind.name}.yml").write_text(yaml.safe_dump(profile))

    def write() -> None:
        """Write the fleet and its locks."""
        ssh = yaml.safe_load(lab.fleet("any"))["ssh"]
        groups = {kind.name: _group(lab, kind) for kind in kinds}
        fleet = {"groups": groups, "ssh": ssh, "repositories": repositories}
        write_locks(folder, fleet, MIRRORED)

    write()
    apply(Fleet(lab.nodes(), folder))
    for kind in kinds:
        first = lab.node(f"{kind.name}1")
        first.run(MIRROR_ALONE)
        lab.save(first, f"{image}-{kind.name}")
        first.start()
        if kind.count > 1:
            names = [f"{kind.name}{number}" for number in range(2, kind.count + 1)]
            lab.up(gpu=kind.machine, image=f"{image}-{kind.name}", names=names)
    write()
    return Fleet(lab.nodes(), folder)


def _group(lab: Lab, kind: Kind) -> dict[str, Any]:
    """Return the keys of the group of nodes of one kind."""
    nodes = [node for node in lab.nodes() if node.name.rstrip("0123456789") == kind.name]
    return {
        "profile": kind.name,
        "os": "debian12",
        "hosts": {node.name: node.address for node in nodes},
        # The stubs are modules for any kernel, and a module store accepts none of those.
        "stack": {"repository": "nvidia", "module_build": "dkms"},
        "settings": {"kernel": nodes[0].kernel},
    }


def write_locks(folder: Path, fleet: dict[str, Any], versions: tuple[str, str]) -> None:
    """Write locks of a fleet at both versions; the nodes have the first."""
    fleet |= {"reboot": {"allowed": True, "timeout_s": 300}, "rollout": ROLLOUT}
    for version in versions:
        for group in fleet["groups"].values():
            group["stack"]["driver"] = version
        (folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
        write_lock(build_lock(folder / "fleet.yml"), folder / f"{version}.lock.yml")
    (folder / "fleet.lock.yml").write_text((folder / f"{versions[0]}.lock.yml").read_text())


def apply(fleet: Fleet) -> None:
    """Bring the nodes to the state in their lock."""
    done = fleet.gpuprov("apply", "--yes", "--reboot")
    assert done.returncode == 0, done.stdout + done.stderr
