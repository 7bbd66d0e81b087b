"""Nodes, one of each system, with every component of gpuprov, in three locks.

NVIDIA's repositories are the lab's mirror, Debian's archive is the real one, Ubuntu's contains Debian's
packages.
"""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from gpuprov.bootstrap.enter import python_of
from gpuprov.catalog import load
from gpuprov.model.lock import Lock, read_lock
from gpuprov_lab import Lab, Node
from gpuprov_lab.host import create_loop_device
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.key import signing_key
from gpuprov_lab.mirror.serve import MirrorServer, served
from gpuprov_lab.variants import (
    at_boot,
    with_control_groups,
    with_network_parameters,
    with_os_release,
)
from tests.campaign._roles_trials import WITHOUT
from tests.lab.command_line import gpuprov
from tests.lab.ubuntu_nodes import build_ubuntu, os_release
from tests.systems import DEBIAN, IMAGES, OF_DNF, SSH


@dataclass(frozen=True)
class Board:
    """The nodes' hardware by its names in lab and catalog, with its own stack and settings."""

    machine: str = "h200x8"
    model: str = "H200 SXM"
    gpus: int = 8
    stack: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


SWITCHED = Board()
SETTLED = "systemctl is-system-running --wait"
FIRST_LOOP = 244
"""First number of the loop devices that replace drives; tests/lab uses lower ones."""
DRIVE = (
    "test -e /dev/loop-control || mknod /dev/loop-control c 10 237; mknod /dev/loop{n} b 7 {n};"
    " test -e /root/{n}.img || truncate -s 64M /root/{n}.img;"
    " losetup /dev/loop{n} || losetup /dev/loop{n} /root/{n}.img; mount -a"
)
"""Commands at every boot that attach a drive and mount fstab's entries.

In a container systemd does not mount them.
"""
OF_CUDA_12: tuple[dict[str, Any], dict[str, Any]] = (
    {"cuda": ["12.6", "12.8"], "nccl": "2.26.2+cuda12.8"},
    {"cuda": "12.8", "nccl": "2.29.7+cuda12.9"},
)
OF_CUDA_13: tuple[dict[str, Any], dict[str, Any]] = (
    {"cuda": ["13.1", "13.2"], "nccl": "2.28.9+cuda13.0"},
    {"cuda": "13.2", "nccl": "2.29.7+cuda13.2"},
)
# Values that differ between systems: the oldest drivers and toolkits in the mirror's folder of the system.
STACKS = {
    "debian12": [{"driver": "580.95.05", **OF_CUDA_12[0]}, {"driver": "590.48.01", **OF_CUDA_12[1]}],
    "debian13": [{"driver": "580.95.05", **OF_CUDA_13[0]}, {"driver": "590.48.01", **OF_CUDA_13[1]}],
    # Its own Podman is too old for GPUs: the lab's archive has Debian 12's.
    "ubuntu22.04": [
        {"driver": "570.195.03", "podman": "4.3", **OF_CUDA_12[0]},
        {"driver": "580.95.05", "podman": "4.3", **OF_CUDA_12[1]},
    ],
    "ubuntu24.04": [{"driver": "570.195.03", **OF_CUDA_12[0]}, {"driver": "580.95.05", **OF_CUDA_12[1]}],
    "ubuntu26.04": [
        {"driver": "610.57.04", "cuda": ["13.3", "13.4"], "nccl": "2.30.7+cuda13.3"},
        {"driver": "615.71.10", "cuda": "13.4", "nccl": "2.32.3+cuda13.4"},
    ],
    # The second toolkit is a new one: packages of a driver have the same names in each branch, and a held
    # name must be missing.
    "rhel8": [
        {"driver": "580.95.05", "podman": "4.9", **OF_CUDA_13[0], "cuda": ["13.0", "13.1"]},
        {"driver": "590.48.01", "podman": "4.9", **OF_CUDA_13[1]},
    ],
    "rhel9": [
        {"driver": "580.95.05", "podman": "5.4", **OF_CUDA_13[0], "cuda": ["13.0", "13.1"]},
        {"driver": "590.48.01", "podman": "5.4", **OF_CUDA_13[1]},
    ],
    "rhel10": [
        {"driver": "580.95.05", "podman": "5.6", **OF_CUDA_13[0], "cuda": ["13.0", "13.1"]},
        {"driver": "590.48.01", "podman": "5.6", **OF_CUDA_13[1]},
    ],
    "amzn2023": [
        {"driver": "580.95.05", **OF_CUDA_13[0], "cuda": ["13.0", "13.1"]},
        {"driver": "595.71.05", **OF_CUDA_13[1]},
    ],
}
COMMON: tuple[dict[str, Any], ...] = (
    {"cudnn": "9.15", "container_toolkit": "1.18", "dcgm": "4.5.2"},
    {"cudnn": "9.28", "container_toolkit": "1.19", "dcgm": "4.6.0"},
)
FROM_THE_ARCHIVE = ("docker", "containerd", "podman", "profiling_tools", "node_exporter")
LACKING = {(system, role) for role, systems in WITHOUT.items() for system in systems} | {
    ("amzn2023", "node_exporter")
}
"""Components that a system's repositories do not have as packages of their own."""
LIMITS = {"memlock": 4194304, "stack": 67108864}
SETTINGS: tuple[dict[str, Any], ...] = (
    {
        "persistence": True,
        "clocks": {"graphics": 1980, "memory": 3201},
        "power_limit": 600,
        "compute_mode": "default",
        "nccl": {"NCCL_SOCKET_IFNAME": "eth0"},
        "containers": {"shm_size": "1g", "cgroup_driver": "cgroupfs", **LIMITS},
        "tuning": {
            "limits": {"nofile": 4096, **LIMITS},
            "sysctl": {"net.ipv4.tcp_keepalive_time": 600},
            "environment": {"OMP_NUM_THREADS": 8},
        },
        "monitoring": {"textfile": "/var/lib/prometheus/node-exporter"},
        "profiling_counters": False,
        "ssh": {},
        "firewall": {},
    },
    {
        "persistence": True,
        "clocks": {"graphics": 1965, "memory": 3201},
        "power_limit": 650,
        "compute_mode": "default",
        "nccl": {"NCCL_SOCKET_IFNAME": "eth1"},
        "containers": {
            "shm_size": "2g",
            "cgroup_driver": "cgroupfs",
            "default_runtime": "nvidia",
            **LIMITS,
        },
        "tuning": {
            "limits": {"nofile": 4096, **LIMITS},
            "sysctl": {"net.ipv4.tcp_keepalive_time": 600},
            "environment": {"OMP_NUM_THREADS": 4},
        },
        "monitoring": {"textfile": "/var/lib/prometheus/node-exporter"},
        "profiling_counters": True,
        "ssh": {"max_auth_tries": 3},
        "firewall": {"open": [{"ports": [8888]}]},
    },
    {
        "persistence": True,
        "ssh": {"max_auth_tries": 3},
        "firewall": {"open": [{"ports": [8888]}]},
    },
)
READ_AHEAD = (4096, 2048, None)
# State that --check must not change.
SNAPSHOT = (
    "dpkg-query -W -f '${db:Status-Abbrev}${Package} ${Version}\\n'; apt-mark showhold; rpm -qa | sort;"
    " find /etc /usr/local /usr/src /var/lib/gpuprov -type f ! -name ld.so.cache | sort | xargs md5sum;"
    " findmnt -rno TARGET,SOURCE /scratch/fast; systemctl list-unit-files --state=enabled --no-legend"
)


@dataclass
class Run:
    """Result of an apply.

    Attributes:
        code: exit code.
        said: standard error.
        ran: node → roles that ran.
        changed: node → role → tasks that changed something.
        failed: node → messages of failed tasks.
        tasks: number of tasks that were not skipped.
    """

    code: int
    said: str
    ran: dict[str, set[str]]
    changed: dict[str, dict[str, list[str]]]
    failed: dict[str, list[str]]
    tasks: int


@dataclass
class Fleet:
    """Nodes by system, and gpuprov in a folder with their fleet.yml.

    Attributes:
        loops: system → loop device, for systems that have a drive.
    """

    lab: Lab
    folder: Path
    nodes: dict[str, Node]
    mirror: nvidia.Mirror
    server: MirrorServer
    loops: dict[str, int] = field(default_factory=dict)
    board: Board = SWITCHED

    def state(self, step: int) -> Lock:
        """Write the fleet of a step (0, 1, 2) and lock it."""
        (self.folder / "fleet.yml").write_text(json.dumps(self.document(step)))  # YAML without aliases
        gpuprov(self.folder, "lock")
        return read_lock(self.folder / "fleet.lock.yml")

    def document(self, step: int) -> dict[str, Any]:
        """Return the fleet of a step."""
        place = self.server.url if step == 0 else f"{self.server.url}/again"
        key = str(self.mirror.key)
        repositories = {
            "nvidia": {"url": self.mirror.cuda(self.server.url), "key": key},
            "container-toolkit": {"url": self.mirror.container_toolkit(place), "key": key},
            "ubuntu": {"url": f"{self.server.url}/ubuntu", "key": key},
            **{name: {"url": url, "key": key} for name, url in self.mirror.others(self.server.url).items()},
        }
        groups = {plain(system): self._group(system, step) for system in self.nodes}
        ssh = yaml.safe_load(self.lab.fleet("board"))["ssh"]
        return {"ssh": ssh, "groups": groups, "repositories": repositories}

    def _group(self, system: str, step: int) -> dict[str, Any]:
        """Return the keys of a system's group in the fleet of one step."""
        node = self.nodes[system]
        stack: dict[str, Any] = {"repository": "nvidia", **STACKS[system][min(step, 1)]}
        if step < len(COMMON):
            stack = {**COMMON[step], **dict.fromkeys(FROM_THE_ARCHIVE, "auto"), **stack}
        else:
            stack |= dict.fromkeys([*COMMON[0], *FROM_THE_ARCHIVE, "cuda", "nccl"], "none")
        stack = {name: each for name, each in stack.items() if (system, name) not in LACKING}
        stack |= self.board.stack
        settings = {"kernel": node.kernel, **SETTINGS[step], **self.board.settings}
        settings["ssh"] = {**SETTINGS[step]["ssh"], **SSH.get(system, {})}
        if READ_AHEAD[step] and system in self.loops:
            drive = f"/dev/loop{self.loops[system]}"
            scratch = {"device": drive, "mount": "/scratch/fast", "read_ahead_kib": READ_AHEAD[step]}
            settings["scratch"] = [scratch]
        return {
            "profile": "board",
            "os": system,
            "hosts": {node.name: node.address},
            "stack": stack,
            "settings": settings,
        }

    def apply(self, *words: str) -> Run:
        """Run `gpuprov apply --yes` with more arguments."""
        done = gpuprov(self.folder, "apply", "--yes", "-o", "json", *words, code=None)
        document = json.loads(done.stdout) if done.stdout.strip() else {}
        run = Run(done.returncode, done.stderr, defaultdict(set), {}, defaultdict(list), 0)
        run.changed = {node.name: defaultdict(list) for node in self.nodes.values()}
        folder = self.folder / "state/gpuprov/runs" / (document.get("run") or "none")
        for path in sorted(folder.rglob("*-events.jsonl")):
            _note(run, path)
        return run

    def drift(self) -> dict[str, set[str]]:
        """Return node → checks in drift."""
        done = gpuprov(self.folder, "drift", "-o", "json", code=None)
        nodes = json.loads(done.stdout)["nodes"]
        return {node["name"]: {each["check"] for each in node["drift"]} for node in nodes}

    def verify(self) -> dict[str, dict[str, str]]:
        """Return node → check → status in verify; if a node cannot be verified, the error is its check."""
        done = gpuprov(self.folder, "verify", "-o", "json", code=None)
        nodes = json.loads(done.stdout)["nodes"]
        return {
            node["name"]: {check["check"]: check["status"] for check in node["checks"]}
            or {str(node["message"]): "failed"}
            for node in nodes
        }

    def snapshot(self) -> dict[str, str]:
        """Return the state of each node that --check must not change."""
        return {node.name: node.run(SNAPSHOT, check=False).stdout for node in self.nodes.values()}


def _note(run: Run, path: Path) -> None:
    """Count a play's events; tasks of the role `packages` count for the role that called it."""
    caller: dict[str, str] = {}
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if event["event"] != "task":
            continue
        host, role = event["host"], event["role"]
        role = caller.get(host, "") if role == "packages" else role
        caller[host] = role
        run.tasks += event["status"] not in ("skipped",)
        run.ran[host].add(role)
        if event["status"] == "changed":
            run.changed[host][role].append(event["task"])
        elif event["status"] in ("failed", "unreachable"):
            run.failed[host].append(f"{role}: {event.get('msg')}")


def bring_up(stack: ExitStack, name: str, folder: Path, systems: list[str], beside: int = 0) -> Fleet:
    """Start the nodes, the mirror and the archives; closing the stack removes them.

    Args:
        beside: number of other fleets that use lower loop devices at the same time.
    """
    first = FIRST_LOOP + beside * len(STACKS)
    loops = {system: first + number for number, system in enumerate(STACKS)}
    stack.callback(detach, [loops[system] for system in systems])
    lab = stack.enter_context(Lab(name))
    nodes = {system: new_node(lab, system, f"{plain(system)}-1", loops[system]) for system in systems}
    return fleet_of(stack, lab, folder, nodes, loops)


def fleet_of(
    stack: ExitStack,
    lab: Lab,
    folder: Path,
    nodes: dict[str, Node],
    loops: dict[str, int],
    board: Board = SWITCHED,
) -> Fleet:
    """Build the mirror for these nodes' systems; return the fleet, with `loops` as in `Fleet`."""
    with signing_key() as key:
        mirror = nvidia.build(folder / "mirror", load(), list(nodes), key=key)
        with_apt = [node for system, node in nodes.items() if system not in OF_DNF]
        if with_apt:
            build_ubuntu(mirror.root / "ubuntu", with_apt[0], key)
    (mirror.root / "again").symlink_to(".")
    (folder / "profiles").mkdir()
    profile = {"hardware": {"gpu": {"model": board.model, "count": board.gpus}}}
    (folder / "profiles/board.yml").write_text(yaml.safe_dump(profile))
    server = stack.enter_context(served(mirror.root))
    return Fleet(lab, folder, nodes, mirror, server, loops, board)


def new_node(
    lab: Lab, system: str, name: str, loop: int | None = None, board: Board = SWITCHED, saved: str = ""
) -> Node:
    """Return a new node that supports every role; with a loop device it has a drive.

    Args:
        saved: a saved image to start from.
    """

    image = saved or IMAGES.get(system, DEBIAN[0])
    steps = [with_control_groups, with_network_parameters]
    if loop is not None:
        create_loop_device(loop)
        steps.append(partial(at_boot, name="drive", command=DRIVE.format(n=loop)))
    if system not in IMAGES:
        steps.append(with_os_release(os_release(system)))
    [node] = lab.up(1, os=image, gpu=board.machine, names=[name], prepare=steps)
    python = python_of(system)  # as `gpuprov bootstrap`
    node.run(f"command -v {python} || dnf -q -y install {python}")
    node.run(
        "mkdir -p /etc/initramfs-tools; echo update_initramfs=no >/etc/initramfs-tools/update-initramfs.conf"
    )
    return node


def detach(loops: Iterable[int]) -> None:
    """Detach loop devices, including unused ones."""
    for number in loops:
        subprocess.run(["losetup", "--detach", f"/dev/loop{number}"], check=False, capture_output=True)


def plain(system: str) -> str:
    """Return a system's id in the form that names of groups and nodes allow."""
    return system.replace(".", "")
