"""Minimal nodes, one for each role, their fleet, and the results of two runs of the role."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from gpuprov.apply.context import Consent, Event, Options, RunContext
from gpuprov.apply.converge import converge
from gpuprov.apply.plan import NodePlan
from gpuprov.catalog import load
from gpuprov.model.lock import Lock, read_lock
from gpuprov.ssh.dispatch import Dispatch
from gpuprov.verify import run_verification
from gpuprov.verify.wanted import wanted
from gpuprov_lab import Lab, Node
from gpuprov_lab.host import create_loop_device
from gpuprov_lab.images import MINIMAL
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.key import signing_key
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.variants import at_boot, with_control_groups, with_network_parameters
from tests.campaign._roles_fleet import COMMON, DRIVE, SETTINGS, STACKS, SWITCHED
from tests.lab.command_line import gpuprov
from tests.systems import DEBIAN

COLUMNS = {
    "first": "the role succeeds on such a node, without other roles of gpuprov",
    "second": "a second run changes nothing",
    "verify": "every check of the role passes",
}
Cell = tuple[str, str, str]
"""System, role, column."""
FIRST_LOOP = 240
"""First number of the loop devices that replace drives; the campaign `roles` uses higher ones."""
LOOPS = {system: FIRST_LOOP + number for number, system in enumerate(DEBIAN)}
COMPONENTS = {
    "cuda_toolkit": ("cuda",),
    "cudnn": ("cuda", "cudnn"),
    "nccl": ("cuda", "nccl"),
    "container_toolkit": ("container_toolkit",),
    "docker": ("docker",),
    "containerd": ("containerd",),
    "podman": ("podman",),
    "profiling_tools": ("profiling_tools",),
    "monitoring": ("dcgm", "node_exporter"),
}
"""Role → components in its lock in addition to the driver; locks of other roles have no further ones."""
OF_CONTAINERS = ("docker", "containerd", "podman", "container_toolkit")
FORKS = 6


class Trials:
    """The lab, and the mirror with NVIDIA's packages."""

    def __init__(self, stack: ExitStack, lab: Lab, folder: Path, systems: list[str]) -> None:
        self.lab, self.folder = lab, folder
        self._images: list[str] = []
        stack.callback(self._drop_images)
        with signing_key() as key:
            self.mirror = nvidia.build(folder / "mirror", load(), systems, key=key)
        self.server = stack.enter_context(served(self.mirror.root))
        (folder / "profiles").mkdir()
        profile = {"hardware": {"gpu": {"model": SWITCHED.model, "count": SWITCHED.gpus}}}
        (folder / "profiles/board.yml").write_text(yaml.safe_dump(profile))
        self._began = time.monotonic()

    def nodes(self, system: str, roles: list[str], image: str = "") -> dict[str, Node]:
        """Return role → a node for it."""

        def drive(root: Path) -> None:
            create_loop_device(LOOPS[system])
            at_boot(root, "drive", DRIVE.format(n=LOOPS[system]))

        found = {}
        for role in roles:
            steps = [with_control_groups, with_network_parameters, *([drive] if role == "storage" else [])]
            name = f"{system}-{role.replace('_', '-')}"
            [found[role]] = self.lab.up(
                1, image=image or f"{system}{MINIMAL}", gpu=SWITCHED.machine, names=[name], prepare=steps
            )
        return found

    def saved(self, node: Node) -> str:
        """Save a node as an image; return its name."""
        name = f"{self.lab.name}-{node.os}"
        self.lab.save(node, name)
        self._images.append(name)
        return name

    def run(self, nodes: dict[str, Node], consent: Consent) -> dict[Cell, str]:
        """Run each role on its node twice, then verify."""
        if not nodes:
            return {}
        lock, system = self._lock(nodes), next(iter(nodes.values())).os
        said = {"first": self._converge(lock, nodes, consent, idle=False)}
        said["second"] = self._converge(lock, nodes, consent, idle=True)
        said["verify"] = self._verify(lock, nodes)
        cells = {(system, role, column): said[column][role] for role in nodes for column in COLUMNS}
        for (_, role, column), complaint in cells.items():
            if complaint != "seen":
                self._say(f"BAD  {role} on {system}, {column}: {complaint}")
        return cells

    def _lock(self, nodes: dict[str, Node]) -> Lock:
        """Write a fleet of the nodes with the mirror's repositories; return its lock."""
        key = str(self.mirror.key)
        repositories = {
            "nvidia": {"url": self.mirror.cuda(self.server.url), "key": key},
            "container-toolkit": {"url": self.mirror.container_toolkit(self.server.url), "key": key},
        }
        ssh = yaml.safe_load(self.lab.fleet("board"))["ssh"]
        groups = {node.name: _group(role, node) for role, node in nodes.items()}
        fleet = {"ssh": ssh, "groups": groups, "repositories": repositories}
        (self.folder / "fleet.yml").write_text(json.dumps(fleet))  # YAML too, without aliases
        gpuprov(self.folder, "lock")
        return read_lock(self.folder / "fleet.lock.yml")

    def _converge(
        self, lock: Lock, nodes: dict[str, Node], consent: Consent, *, idle: bool
    ) -> dict[str, str]:
        """Return role → complaints about one run, or "seen"."""
        began = time.monotonic()
        changed: dict[str, list[str]] = {node.name: [] for node in nodes.values()}

        def listen(event: Event) -> None:
            if event.get("status") == "changed":
                changed[event["host"]].append(event["task"])

        folder = self.folder / f"run-{time.monotonic_ns()}"
        folder.mkdir()
        run = RunContext(lock, folder, Options(Dispatch(forks=FORKS)), consent, listen)
        plans = [
            NodePlan(node.name, tuple(dict.fromkeys(("preflight", "repositories", role))), False, (), ())
            for role, node in nodes.items()
        ]
        result = converge(run, plans)
        reported = {}
        for role, node in nodes.items():
            outcome, seen = result.outcomes[node.name], result.drift.get(node.name)
            failures = [f"{each['role']}: {each.get('msg')}" for each in outcome.failed]
            failures += [seen.reason] if seen and seen.reason else []
            failures += [outcome.unreachable] if outcome.unreachable else []
            failures += [f"changed {', '.join(changed[node.name])}"] if idle and changed[node.name] else []
            reported[role] = "; ".join(failures) or "seen"
        self._say(
            f"{'second' if idle else 'first'} run of {len(nodes)} roles: {time.monotonic() - began:.0f} s"
        )
        return reported

    def _verify(self, lock: Lock, nodes: dict[str, Node]) -> dict[str, str]:
        """Return role → `seen`, or the checks of the role that failed or were not run."""
        by_name = {node.name: role for role, node in nodes.items()}
        groups, result = lock.hosts(), {}
        for seen in run_verification(lock, list(by_name), dispatch=Dispatch(forks=FORKS)).nodes:
            role = by_name[seen.name]
            own = {check for check, each in wanted(groups[seen.name]).items() if each.role == role}
            failed = {
                each.check: each.actual
                for each in seen.checks
                if each.check in own and each.status != "passed"
            }
            ran = own & {each.check for each in seen.checks}
            result[role] = (
                f"failed: {failed}" if failed else "seen" if ran == own else f"not run: {own - ran}"
            )
        return result

    def _drop_images(self) -> None:
        """Remove the nodes and their images."""
        self.lab.down()
        for name in self._images:
            self.lab.drop(name)

    def _say(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        sys.stdout.write(f"{time.monotonic() - self._began:6.0f} s  {text}\n")
        sys.stdout.flush()


def _group(role: str, node: Node) -> dict[str, Any]:
    """Return the group of a role's node: GPUs, a driver, and the components and settings of the role."""
    versions = {**STACKS[node.os][0], **COMMON[0]}
    settings: dict[str, Any] = {"kernel": node.kernel, **SETTINGS[0]}
    if role not in OF_CONTAINERS:
        settings.pop("containers")
    if role == "storage":
        drive = f"/dev/loop{LOOPS[node.os]}"
        settings["scratch"] = [{"device": drive, "mount": "/scratch/fast", "read_ahead_kib": 4096}]
    stack = {"repository": "nvidia", "driver": versions["driver"]}
    stack |= {each: versions.get(each, "auto") for each in COMPONENTS.get(role, ())}
    return {
        "profile": "board",
        "os": node.os,
        "hosts": {node.name: node.address},
        "stack": stack,
        "settings": settings,
    }
