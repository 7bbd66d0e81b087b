"""Fresh servers of a cloud: Debian's own cloud-init, user-data that gpuprov exported, nobody logged in."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from gpuprov.errors import Unreachable
from gpuprov.lab import Node
from gpuprov.lab.images import find_image
from gpuprov.model.lock import Lock, read_lock
from tests.lab.command_line import gpuprov

PROFILE, MACHINE = "hgx-a100-4", "a100x4"
STATE = "/var/lib/gpuprov/first-boot/state.json"
ENDS = ("done", "failed", "postponed")
PAUSE_S = 2.0


def base_kernel(os: str = "debian12") -> str:
    """The kernel that is installed on fresh nodes of a system."""
    [path] = (find_image(os).layers[-1] / "usr/lib/modules").iterdir()
    return path.name


MORE: dict[str, dict[str, Any]] = {
    "stack": {"docker": "auto", "node_exporter": "auto", "profiling_tools": "auto"},
    "settings": {
        "containers": {"cgroup_driver": "systemd", "shm_size": "1g"},
        "monitoring": {"textfile": "/var/lib/prometheus/node-exporter"},
        "tuning": {"limits": {"nofile": 8192}, "environment": {"OMP_NUM_THREADS": "8"}},
    },
}
"""What a server of a cloud gets beside the driver."""


def write_fleet(folder: Path, *, light: bool = False, **stack: str) -> Lock:
    """State and lock a group of servers that are not there yet.

    Args:
        light: the driver and how GPUs are set; nothing else.
        stack: more keys of the group's stack.
    """
    more: dict[str, dict[str, Any]] = {"stack": {}, "settings": {}} if light else MORE
    group = {
        "profile": PROFILE,
        "os": "debian12",
        "hosts": "cloud[1-2]",
        "stack": {"repository": "distribution", **more["stack"], **stack},
        "settings": {"kernel": base_kernel(), **more["settings"]},
    }
    (folder / "fleet.yml").write_text(yaml.safe_dump({"groups": {"train": group}}))
    gpuprov(folder, "lock")
    return read_lock(folder / "fleet.lock.yml")


def user_data(folder: Path, *words: str) -> bytes:
    """What `gpuprov inventory export cloud-init` prints."""
    return gpuprov(folder, "inventory", "export", "cloud-init", "train", *words).stdout.encode()


def state(node: Node) -> dict[str, Any]:
    """What a node says of its first boot; nothing where it does not yet."""
    try:
        said = node.run(f"cat {STATE}", check=False).stdout
    except Unreachable:  # it reboots itself
        return {}
    found: dict[str, Any] = json.loads(said) if said else {}
    return found


def await_state(
    node: Node, states: Collection[str] = ENDS, *, seconds: float = 1500, after: int = 0
) -> dict[str, Any]:
    """Wait until a first boot is in one of some states.

    Args:
        after: starts of the program that do not count any more.
    """
    deadline = time.monotonic() + seconds
    while True:
        told = state(node)
        if told.get("state") in states and told["attempts"] > after:
            return told
        if time.monotonic() > deadline:
            raise AssertionError(f"{node.name}: {told}\n{journal(node)}")
        time.sleep(PAUSE_S)


def journal(node: Node) -> str:
    """What the unit has said."""
    words = "journalctl --no-pager -u gpuprov-first-boot -u cloud-final | tail -60"
    try:
        return node.run(words, check=False).stdout
    except Unreachable:
        return node.console.read_text(errors="replace")[-4000:]
