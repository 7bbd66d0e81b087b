"""Nodes whose driver is there without its packages: for tests of everything that is not the driver."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

from gpuprov.apply.playbook import NodeOutcome
from gpuprov.drift.judge import NodeDrift
from gpuprov.drift.survey import survey
from gpuprov.lab import Lab, Node
from gpuprov.lab.simulator import stub_module
from gpuprov.model.lock import Component, Connection, Lock, LockedGroup, Setting, read_lock
from gpuprov.verify import run_verification
from tests import RECORDED_LOCK
from tests.lab.run_roles import play

VERSION = "535.309.01"
MODULES = ("", "-uvm")
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so"
PROGRAMS = (
    "touch /usr/bin/nvidia-smi.distrib /usr/bin/nvidia-persistenced.distrib"
    f" {LIBRARY}.{VERSION}; ln -s libnvidia-ml.so.{VERSION} {LIBRARY}.1"
)
PERSISTENCED = """\
[Unit]
Description=NVIDIA Persistence Daemon

[Service]
Type=forking
ExecStart=/usr/bin/nvidia-persistenced --verbose

[Install]
WantedBy=multi-user.target
"""


def drive(node: Node) -> None:
    """Put stub modules and stand-ins for the driver's programs on a node and boot it."""
    folder = f"/lib/modules/{node.kernel}/updates/dkms"
    for part in MODULES:
        stub = stub_module(VERSION, kernel=node.kernel, name=f"nvidia{part.replace('-', '_')}")
        node.run(
            f"mkdir -p {folder} && base64 -d >{folder}/nvidia-current{part}.ko",
            input=b64encode(stub).decode(),
        )
    node.run("echo 'blacklist nouveau' >/etc/modprobe.d/nouveau.conf")
    node.run("cat >/usr/lib/systemd/system/nvidia-persistenced.service", input=PERSISTENCED)
    node.run(f"{PROGRAMS}; /usr/lib/gpuprov-sim/arrange")
    node.reboot()
    node.run("systemctl is-system-running --wait", check=False)


class Driven:
    """A driven node with a lock, and what gpuprov does with it."""

    def __init__(self, lab: Lab, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        self.group = locked_group(lab, node)

    def state(self, settings: dict[str, Any] | None = None, **components: Component | None) -> None:
        """Write settings and components into the lock, as `gpuprov lock` would."""
        changed = {
            name: Setting(value=value, reason="test", source="test")
            for name, value in (settings or {}).items()
        }
        self.group = self.group.model_copy(
            update={
                "settings": {**self.group.settings, **changed},
                "components": self.group.components.model_copy(update=components),
            }
        )

    @property
    def lock(self) -> Lock:
        """The lock as it is now."""
        return Lock(inputs="0" * 64, groups={"test": self.group})

    def apply(self, *roles: str, check: bool = False, **variables: Any) -> tuple[NodeOutcome, list[str]]:
        """Run roles; the outcome, and the names of the tasks that changed."""
        return play(self.lock, self.node, self.folder, *roles, check=check, **variables)

    def drift(self, *areas: str) -> set[str]:
        """Checks of areas (`docker.`) that the probe finds to differ."""
        [found] = survey(self.lock, [self.node.name])
        assert isinstance(found, NodeDrift)
        assert found.reason is None, found.reason
        return {each.check for each in found.drift if each.check.startswith(areas)}

    def failed(self, *areas: str) -> dict[str, Any]:
        """Checks of areas that fail under verify's own eyes, with what was seen; one at least was run."""
        [seen] = run_verification(self.lock, [self.node.name]).nodes
        checks = {check.check: check for check in seen.checks if check.check.startswith(areas)}
        assert checks, seen.message
        return {name: check.actual for name, check in checks.items() if check.status == "failed"}

    def says(self, command: str) -> str:
        """What a command prints, whatever its exit status."""
        done = self.node.run(command, check=False)
        return (done.stdout + done.stderr).strip()

    def candidate(self, *packages: str) -> dict[str, str]:
        """The versions of packages that apt would install."""
        lines = self.says(f"apt-cache policy {' '.join(packages)}").splitlines()
        found = [line.split()[1] for line in lines if line.startswith("  Candidate:")]
        return dict(zip(packages, found, strict=True))


def locked_group(lab: Lab, node: Node) -> LockedGroup:
    """A group of this node alone, with a driver and GPUs and nothing else."""
    [group] = read_lock(RECORDED_LOCK).groups.values()
    connection = Connection(identity_file=str(lab.identity_file), known_hosts=str(lab.known_hosts))
    return group.model_copy(
        update={"hosts": {node.name: node.address}, "connection": connection, "settings": {}}
    )


def component(packages: dict[str, str]) -> Component:
    """A locked component of just these packages."""
    version = next(iter(packages.values()))
    return Component(
        version=version, repository="test", packages=packages, closure=packages, hold_patterns=[],
        reason="test", source="test",
    )  # fmt: skip
