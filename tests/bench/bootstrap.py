"""Measures bootstrap of many nodes from password logins to keys only, in one command, and a second run.

scripts/bench bootstrap [--nodes 20] [--at-once 32]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from gpuprov_lab import Lab
from gpuprov_lab.identity import make_key
from gpuprov_lab.variants import with_admin
from tests.systems import DEBIAN

PASSWORD = "correct-horse-battery"  # noqa: S105 - of throwaway nodes


def main() -> int:
    """Time both runs; return 0 if the first changed every node, and the second none."""
    parser = argparse.ArgumentParser(prog="scripts/bench bootstrap")
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=32)
    wanted = parser.parse_args()
    with Lab(f"bootstrap-{os.getpid()}") as lab, tempfile.TemporaryDirectory() as folder:
        for number, system in enumerate(DEBIAN):
            count = wanted.nodes // 2 + (wanted.nodes % 2 if number == 0 else 0)
            lab.up(count, system, prepare=[with_admin("debian", PASSWORD), _without_keys])
        _write_fleet(lab, Path(folder))
        first = _run(Path(folder), wanted.at_once)
        second = _run(Path(folder), wanted.at_once)
    for name, (seconds, statuses) in (("first", first), ("second", second)):
        result = ", ".join(f"{statuses.count(each)} {each}" for each in sorted(set(statuses)))
        print(f"{name} run: {wanted.nodes} nodes in {seconds:.1f} s: {result}")
    return 0 if set(first[1]) == {"changed"} and set(second[1]) == {"ready"} else 1


def _without_keys(root: Path) -> None:
    """Remove all keys, as a cloud that only supports passwords."""
    for home in ("root", "home/debian"):
        shutil.rmtree(root / home / ".ssh")


def _write_fleet(lab: Lab, folder: Path) -> None:
    """Write a fleet with the lab's nodes, an operator's key and a copy of the known hosts."""
    make_key(folder / "id_ed25519", "operator")
    shutil.copy(lab.known_hosts, folder / "vouched")
    groups = {
        system: {
            "profile": "hgx-a100-4",
            "os": system,
            "hosts": {node.name: node.address for node in lab.nodes() if node.os == system},
        }
        for system in DEBIAN
    }
    ssh = {
        "user": "ops",
        "identity_file": str(folder / "id_ed25519"),
        "known_hosts": str(folder / "known_hosts"),
    }
    (folder / "fleet.yml").write_text(yaml.safe_dump({"groups": groups, "ssh": ssh}))


def _run(folder: Path, at_once: int) -> tuple[float, list[str]]:
    """Return the seconds, and each node's status."""
    reading, writing = os.pipe()
    os.write(writing, f"{PASSWORD}\n".encode())
    os.close(writing)
    words = ["--user", "debian", "--password-fd", str(reading), "--host-key", "vouched", "-o", "json"]
    command = [sys.executable, "-m", "gpuprov", "bootstrap", *words, "--forks", str(at_once)]
    begun = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, pass_fds=[reading], stdout=subprocess.PIPE, text=True, check=False
    )
    seconds = time.monotonic() - begun
    os.close(reading)
    nodes = json.loads(done.stdout)["nodes"]
    for node in nodes:
        if node["status"] == "failed":
            sys.stderr.write(f"{node['name']}: {node['message']}\n")
    return seconds, [node["status"] for node in nodes]


if __name__ == "__main__":
    sys.exit(main())
