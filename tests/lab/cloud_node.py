"""New servers in a cloud: Debian's cloud-init with user-data that gpuprov exported, without any login."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from gpuprov.errors import Unreachable
from gpuprov.model.lock import Lock, read_lock
from gpuprov_lab import Node
from gpuprov_lab.images import find_image
from tests.lab.command_line import gpuprov

PROFILE, MACHINE = "hgx-a100-4", "a100x4"
STATE = "/var/lib/gpuprov/first-boot/state.json"
ENDS = ("done", "failed", "postponed")
PAUSE_S = 2.0


def base_kernel(os: str = "debian12") -> str:
    """Return the kernel that is installed on new nodes of a system."""
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
"""Configuration of a cloud server in addition to the driver."""


def write_fleet(
    folder: Path, *, light: bool = False, sysctl: dict[str, int] | None = None, **stack: str
) -> Lock:
    """Write and lock a group of servers that do not exist yet.

    Args:
        light: only the driver and the GPU settings.
        sysctl: kernel parameters; a node has to be able to set them.
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
    if sysctl:
        group["settings"]["tuning"] = {**more["settings"]["tuning"], "sysctl": sysctl}
    (folder / "fleet.yml").write_text(yaml.safe_dump({"groups": {"train": group}}))
    gpuprov(folder, "lock")
    return read_lock(folder / "fleet.lock.yml")


def user_data(folder: Path, *words: str) -> bytes:
    """Return the output of `gpuprov inventory export cloud-init`."""
    return gpuprov(folder, "inventory", "export", "cloud-init", "train", *words).stdout.encode()


def state(node: Node) -> dict[str, Any]:
    """Return a node's first-boot state; empty if the node has none yet or is rebooting."""
    try:
        said = node.run(f"cat {STATE}", check=False).stdout
    except Unreachable:  # the node reboots by itself
        return {}
    found: dict[str, Any] = json.loads(said) if said else {}
    return found


def await_state(
    node: Node, states: Collection[str] = ENDS, *, seconds: float = 1500, after: int = 0
) -> dict[str, Any]:
    """Wait until a first boot reaches one of the given states.

    Args:
        after: number of earlier starts of the program, whose states are ignored.

    Raises:
        AssertionError: after `seconds` without such a state.
    """
    deadline = time.monotonic() + seconds
    while True:
        result = state(node)
        if result.get("state") in states and result["attempts"] > after:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"{node.name}: {result}\n{journal(node)}")
        time.sleep(PAUSE_S)


def journal(node: Node) -> str:
    """Return the journal of the first-boot unit and cloud-init; the end of the console while SSH is down."""
    words = "journalctl --no-pager -u gpuprov-first-boot -u cloud-final | tail -60"
    try:
        return node.run(words, check=False).stdout
    except Unreachable:
        return node.console.read_text(errors="replace")[-4000:]
