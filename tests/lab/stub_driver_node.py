"""Nodes with a stub driver without packages: for tests of everything except the driver."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

from gpuprov.model.connection import Connection
from gpuprov.model.lock import Component, Lock, LockedGroup, read_lock
from gpuprov_lab import Lab, Node
from gpuprov_lab.simulator import stub_module
from tests import RECORDED_LOCK
from tests.lab.node_under_test import NodeUnderTest, with_settings

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

LINE = """\
[Unit]
Description=A line of the kernel's log, as each boot of a machine has

[Service]
Type=oneshot
ExecStart=/usr/sbin/gpuprov-sim log Linux version 6.1.0

[Install]
WantedBy=multi-user.target
"""


def with_kernel_lines(node: Node) -> None:
    """Give a node a line in the kernel's log, now and at each boot: an empty log is not judged."""
    node.run("cat >/etc/systemd/system/kernel-line.service", input=LINE)
    node.run("systemctl enable --now kernel-line")


def drive(node: Node) -> None:
    """Install stub modules and stubs of the driver's programs on a node, and boot it."""
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


class StubDriverNode(NodeUnderTest):
    """A node with a lock that its test changes."""

    def __init__(self, lab: Lab, node: Node, folder: Path) -> None:
        super().__init__(node, folder)
        self.lock = Lock(inputs="0" * 64, groups={"test": locked_group(lab, node)})

    def state(self, settings: dict[str, Any] | None = None, **components: Component | None) -> None:
        """Write settings and components into the lock, as `gpuprov lock` would."""
        group = with_settings(self.group, settings or {})
        self.group = group.model_copy(update={"components": group.components.model_copy(update=components)})


def locked_group(lab: Lab, node: Node) -> LockedGroup:
    """Return a group of only this node, with a driver and GPUs and no other components."""
    [group] = read_lock(RECORDED_LOCK).groups.values()
    connection = Connection(identity_file=str(lab.identity_file), known_hosts=str(lab.known_hosts))
    return group.model_copy(
        update={"hosts": {node.name: node.address}, "connection": connection, "settings": {}}
    )


def component(packages: dict[str, str]) -> Component:
    """Return a locked component of exactly these packages."""
    version = next(iter(packages.values()))
    return Component(
        version=version, repository="test", packages=packages, closure=packages, hold_patterns=[],
        reason="test", source="test",
    )  # fmt: skip
