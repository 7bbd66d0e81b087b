"""Nodes with a driver that can be upgraded: two locks of one branch, both in Debian's archive, and gpuprov.

The compiler is played; packages, DKMS, reboots and SSH are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuprov.lab import Lab, Node
from gpuprov.lock import write_lock
from gpuprov.locking import build_lock
from tests.lab.compiler import play_compiler

NEWER, OLDER = "535.309.01", "535.261.03"
ROLLOUT: dict[str, Any] = {"settle_s": 20}


@dataclass(frozen=True)
class Fleet:
    """Nodes, and the folder with the locks of both versions; `fleet.lock.yml` is what they have."""

    nodes: list[Node]
    folder: Path

    def gpuprov(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One command line, as a person types it; its state is the folder's."""
        with self.start(*words) as process:
            out, err = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The same, not waited for."""
        return subprocess.Popen(
            [sys.executable, "-m", "gpuprov", *words],
            cwd=self.folder,
            env={**os.environ, "XDG_STATE_HOME": str(self.folder / "state")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def upgrade(self, version: str, *words: str, **rollout: Any) -> subprocess.CompletedProcess[str]:
        """Upgrade to one of the two locks, under rules of its own."""
        return self.gpuprov("upgrade", "--to", self.lock(version, **rollout), "--yes", "-o", "json", *words)

    def lock(self, version: str, **rollout: Any) -> str:
        """The file of a lock, with rules of its own written into it."""
        name = f"{version}.lock.yml"
        plain = yaml.safe_load((self.folder / name).read_text())
        plain["rollout"] = ROLLOUT | rollout
        (self.folder / name).write_text(yaml.safe_dump(plain, sort_keys=False))
        return name

    def ends(self, done: subprocess.CompletedProcess[str]) -> dict[str, str]:
        """Where nodes stand, as an upgrade's document says; empty when nothing moved."""
        nodes = json.loads(done.stdout)["nodes"] if done.stdout.strip() else []
        return {node["name"]: node["stands"] for node in nodes}

    def wrong(self, lock: str = "fleet.lock.yml") -> dict[str, Any]:
        """Node → what verification under a lock has against it."""
        done = self.gpuprov("verify", "--lock", lock, "-o", "json")
        assert done.stdout, done.stderr
        return {
            node["name"]: [check["check"] for check in node["checks"] if check["status"] == "failed"]
            or node["message"]
            for node in json.loads(done.stdout)["nodes"]
            if node["status"] != "passed"
        }

    def loaded(self) -> dict[str, str]:
        """Node → the version of the module that runs."""
        command = "grep -o '535[.0-9]*' /proc/driver/nvidia/version | head -1"
        return {node.name: node.run(command, check=False).stdout.strip() for node in self.nodes}


def write_locks(lab: Lab, folder: Path) -> None:
    """The fleet of a lab, and its locks at both versions."""
    fleet = yaml.safe_load(lab.fleet("hgx-a100-4"))
    fleet |= {"reboot": {"allowed": True, "timeout_s": 90}, "rollout": ROLLOUT}
    [group] = fleet["groups"].values()
    for version in (NEWER, OLDER):
        group["stack"] = {"repository": "distribution", "driver": version}
        (folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
        write_lock(build_lock(folder / "fleet.yml"), folder / f"{version}.lock.yml")
    write_lock(build_lock(folder / "fleet.yml"), folder / "fleet.lock.yml")
    (folder / "fleet.lock.yml").write_text((folder / f"{NEWER}.lock.yml").read_text())


def provisioned(lab: Lab, folder: Path, count: int, image: str) -> Fleet:
    """Nodes that have the newer driver; the first is provisioned, saved, and the others start from it.

    Args:
        image: a name for what is saved; the caller drops it.
    """
    [node] = lab.up(1, gpu="a100x4", names=["node1"])
    play_compiler(node, NEWER, OLDER)
    write_locks(lab, folder)
    applied = Fleet([node], folder).gpuprov("apply", "--yes", "--reboot")
    assert applied.returncode == 0, applied.stderr
    lab.save(node, image)
    node.start()
    if count > 1:
        lab.up(gpu="a100x4", image=image, names=[f"node{number}" for number in range(2, count + 1)])
    write_locks(lab, folder)
    return Fleet(lab.nodes(), folder)
