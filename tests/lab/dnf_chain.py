"""A node that plays a system with dnf by the command line, and the fleet that states all of its roles."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuprov.catalog import load
from gpuprov_lab import Lab, Node
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.variants import with_control_groups, with_network_parameters
from tests.lab.command_line import gpuprov, start
from tests.systems import IMAGES, SSH

STACK = {
    "repository": "nvidia",
    "driver": "580.126.16",
    "cuda": "13.0",
    "cudnn": "9.15",
    "nccl": "auto",
    "docker": "28.5",
    "podman": "5.4",
    "container_toolkit": "1.19.0",
    "profiling_tools": "auto",
    "node_exporter": "auto",
    "dcgm": "4.5.2",
}
NO_REPOSITORY = "echo proxy=http://127.0.0.1:9 >>/etc/dnf/dnf.conf; rm -rf /var/cache/dnf/*/packages"
"""Commands that put every repository out of reach, and remove the packages that dnf has fetched."""
REPOSITORIES = "sed -i /^proxy=/d /etc/dnf/dnf.conf"
"""Command after which the repositories are in reach again."""
SETTINGS = {
    "persistence": True,
    "clocks": {"graphics": 1980, "memory": 3201},
    "containers": {"shm_size": "1g", "cgroup_driver": "cgroupfs", "memlock": 4194304},
    "tuning": {"limits": {"nofile": 4096}, "environment": {"OMP_NUM_THREADS": 8}},
    "storage_clients": ["nfs"],
    "monitoring": {"textfile": "/var/lib/prometheus/node-exporter"},
    "profiling_counters": True,
    "health": {},
    "firewall": {"open": [{"ports": [8888]}]},
}


@dataclass(frozen=True)
class Chain:
    """A node, and the folder of its fleet."""

    node: Node
    folder: Path
    fleet: dict[str, Any]

    def gpuprov(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run gpuprov in the folder."""
        return gpuprov(self.folder, *words, code=code)

    def state(self, lock: str = "fleet.lock.yml", **stack: str) -> None:
        """Write the fleet with these versions and lock it."""
        [group] = self.fleet["groups"].values()
        stated = {**self.fleet, "groups": {"train": {**group, "stack": {**group["stack"], **stack}}}}
        (self.folder / "fleet.yml").write_text(yaml.safe_dump(stated))
        self.gpuprov("lock", "--lock", lock)

    def failed(self) -> dict[str, Any]:
        """Return the checks that fail in verify, as check → actual value."""
        self.node.run("systemctl is-system-running --wait", check=False)
        [node] = json.loads(self.gpuprov("verify", "-o", "json", code=None).stdout)["nodes"]
        assert node["checks"], node["message"]
        return {each["check"]: each["actual"] for each in node["checks"] if each["status"] == "failed"}

    def drift(self) -> dict[str, Any]:
        """Return drift as check → actual value."""
        [node] = json.loads(self.gpuprov("drift", "-o", "json", code=None).stdout)["nodes"]
        return {each["check"]: each["actual"] for each in node["drift"]}

    def resume_killed_upgrade(self, lock: str) -> None:
        """Upgrade to a lock, kill the controller while it applies, and resume the upgrade."""
        process = start(self.folder, "upgrade", "--to", lock, "--yes", "-o", "json")
        while '"apply"' not in self.journal():
            assert process.poll() is None, process.communicate()
            time.sleep(0.2)
        time.sleep(20)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        done = self.gpuprov("upgrade", "--resume", "-o", "json", code=None)
        assert done.returncode == 0, done.stdout + done.stderr

    def forget_packages(self) -> None:
        """Put every repository out of reach, and remove the packages that dnf has fetched."""
        self.node.run(NO_REPOSITORY)

    def roll_back(self) -> None:
        """Roll back, and have the repositories in reach again."""
        back = self.gpuprov("rollback", "--yes", "-o", "json", code=None)
        self.node.run(REPOSITORIES)
        assert back.returncode == 0, back.stdout + back.stderr

    def journal(self) -> str:
        """Return the text of all journals of upgrades."""
        paths = (self.folder / "state/gpuprov/runs").glob("*-upgrade-*/journal.jsonl")
        return "".join(path.read_text() for path in paths)

    def installed(self, name: str) -> str:
        """Return the version of an installed package."""
        return self.node.run(f"rpm -q --qf '%{{EVR}}' {name}", check=False).stdout


@contextmanager
def new_chain(lab: Lab, folder: Path, system: str, stack: dict[str, Any] = STACK) -> Iterator[Chain]:
    """Start a node of a system, and a mirror; yield it with a fleet, which is not locked."""
    mirror = nvidia.build(folder / "mirror", load(), [system])
    [node] = lab.up(
        1, os=IMAGES[system], gpu="h200x8", prepare=[with_control_groups, with_network_parameters]
    )
    (folder / "profiles").mkdir()
    profile = {"hardware": {"gpu": {"model": "H200 SXM", "count": 8}}}
    (folder / "profiles/eight.yml").write_text(yaml.safe_dump(profile))
    with served(mirror.root) as server:
        key = str(mirror.key)
        urls = {**mirror.urls(server.url), **mirror.others(server.url)}
        fleet = {
            "ssh": yaml.safe_load(lab.fleet("eight"))["ssh"],
            "repositories": {name: {"url": url, "key": key} for name, url in urls.items()},
            "groups": {
                "train": {
                    "profile": "eight",
                    "os": system,
                    "hosts": {node.name: node.address},
                    "stack": stack,
                    "settings": {"kernel": node.kernel, "ssh": SSH.get(system, {}), **SETTINGS},
                }
            },
        }
        yield Chain(node, folder, fleet)
