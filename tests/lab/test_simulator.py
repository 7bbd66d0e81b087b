"""The simulator on a real node with Debian's real packages; only the kernel module is a stub.

The tests build on each other: one node gets a driver and loses it again.
"""

from __future__ import annotations

from base64 import b64encode

import pytest

from gpuprov_lab import Lab, Node
from gpuprov_lab.simulator import stub_module

# With libcuda1 Debian chooses the alternative that contains the blacklist of nouveau.
PACKAGES = "nvidia-smi nvidia-persistenced nvidia-kernel-support libcuda1"
SOURCES = "/etc/apt/sources.list.d/debian.sources"
ADD_COMPONENTS = f"sed -i 's/^Components:.*/Components: main contrib non-free/' {SOURCES}"
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends"
FIELDS = "persistence_mode,clocks.applications.graphics"
STATE = f"nvidia-smi --query-gpu={FIELDS} --format=csv,noheader,nounits -i 0"
NOBODY = "setpriv --reuid=nobody --regid=nogroup --clear-groups"


@pytest.fixture(scope="module")
def node(module_lab: Lab) -> Node:
    [node] = module_lab.up(1, os="debian12", gpu="h200x4")
    return node


def says(node: Node, command: str) -> str:
    """Return a command's output, regardless of its exit status."""
    done = node.run(command, check=False)
    return (done.stdout + done.stderr).strip()


def reboot(node: Node) -> None:
    """Reboot, and wait for the last unit: SSH answers earlier."""
    node.reboot()
    says(node, "systemctl is-system-running --wait")


def test_a_fresh_node_has_gpus_and_no_driver(node: Node) -> None:
    assert says(node, "lspci -nn").count("3D controller [0302]: NVIDIA Corporation") == 4
    assert says(node, "lsmod").splitlines()[1].split()[0] == "nouveau"
    assert "not found" in says(node, "nvidia-smi")
    assert says(node, "systemctl is-system-running --wait") == "running"


def test_packages_bring_the_commands_and_no_loaded_module(node: Node) -> None:
    # An initramfs takes longer than all other steps, and a node does not boot from it.
    node.run("echo update_initramfs=no >/etc/initramfs-tools/update-initramfs.conf")
    node.run(f"{ADD_COMPONENTS} && apt-get -q update && {INSTALL} {PACKAGES}")
    kernel = node.kernel
    version = says(node, "dpkg-query -W -f '${Version}' nvidia-smi").split("-")[0]
    folder = f"/lib/modules/{kernel}/updates/dkms"
    for part in ("", "-uvm"):
        module = stub_module(version, kernel=kernel, name=f"nvidia{part.replace('-', '_')}")
        path = f"{folder}/nvidia-current{part}.ko"
        node.run(f"mkdir -p {folder} && base64 -d >{path}", input=_base64(module))
    assert says(node, f"modinfo -F version {folder}/nvidia-current.ko") == version
    assert "couldn't communicate with the NVIDIA driver" in says(node, "nvidia-smi")
    assert says(node, "systemctl is-active nvidia-persistenced") == "failed"
    assert "Failed to query NVIDIA devices" in says(node, "journalctl -u nvidia-persistenced --no-pager")
    assert says(node, "dpkg --verify nvidia-smi nvidia-persistenced kmod") == ""


def test_a_reboot_loads_the_driver_and_its_daemon_keeps_it(node: Node) -> None:
    reboot(node)
    assert says(node, "systemctl is-active nvidia-persistenced") == "active"
    assert says(node, "ps -o user= $(cat /run/nvidia-persistenced/nvidia-persistenced.pid)") == "nvpd"
    assert says(node, STATE) == "Enabled, 1980"
    node.run("nvidia-smi -ac 3201,1500")
    assert says(node, STATE) == "Enabled, 1500"
    assert "in use" in says(node, "modprobe -r nvidia-current nvidia")
    node.run("systemctl stop nvidia-persistenced")
    assert says(node, STATE) == "Disabled, 1980"
    node.run("systemctl start nvidia-persistenced")
    assert says(node, STATE) == "Enabled, 1980"


def test_anybody_may_look_and_only_root_may_change(node: Node) -> None:
    look = says(node, f"{NOBODY} nvidia-smi -L")
    assert look.count("NVIDIA H200") == 4
    change = says(node, f"{NOBODY} nvidia-smi -ac 3201,1500")
    assert change.startswith("The current user does not have permission to change clocks for GPU")


def test_a_deleted_blacklist_gives_the_gpus_to_nouveau(node: Node) -> None:
    node.run("rm /etc/modprobe.d/nvidia-blacklists-nouveau.conf")
    reboot(node)
    assert says(node, "lsmod").splitlines()[1].split()[0] == "nouveau"
    assert "No such device" in says(node, "modprobe nvidia")


def test_a_removed_package_takes_its_command_along(node: Node) -> None:
    node.run("DEBIAN_FRONTEND=noninteractive apt-get -q -y remove nvidia-smi nvidia-persistenced")
    programs = "/usr/bin/nvidia-persistenced /usr/lib/nvidia/current/nvidia-smi"
    assert says(node, f"ls {programs}").count("No such file") == 2
    assert "not found" in says(node, "nvidia-smi")


def _base64(content: bytes) -> str:
    return b64encode(content).decode()
