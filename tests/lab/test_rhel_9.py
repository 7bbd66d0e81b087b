"""A node that plays Rocky Linux 9: real dnf, rpm and dracut, without apt and dpkg; see docs/proof.md.

The tests build on each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gpuprov.catalog import load
from gpuprov_lab import Lab
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import served
from tests.lab.mirror_node import RockyNode, rocky

STACK = {"driver": "580.126.16", "cuda": "13.0", "cudnn": "9.15", "nccl": "auto"}


@pytest.fixture(scope="module")
def node(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RockyNode]:
    folder = tmp_path_factory.mktemp("rocky")
    mirror = nvidia.build(folder / "mirror", load(), ["rhel9"])
    with ExitStack() as stack:
        node = rocky(module_lab, folder, mirror, stack.enter_context(served(mirror.root)))
        node.state(**STACK)
        yield node


def test_the_node_is_rocky_linux_without_dpkg(node: RockyNode) -> None:
    assert "Rocky Linux 9.6" in node.says("cat /etc/os-release")
    assert node.says("command -v apt-get apt dpkg dpkg-query") == ""
    assert {"rocky-release", "kernel-core", "dracut"} <= node.installed.keys()
    assert not {"dkms", "gcc"} & node.installed.keys()
    assert node.says("command -v dkms gcc") == ""
    assert node.says("dnf -q install -y make >/dev/null && make --version").startswith("GNU Make")
    kernel = node.node.kernel
    assert kernel.endswith(".el9_6.x86_64")
    assert f"/boot/vmlinuz-{kernel}" in node.says("grubby --default-kernel")
    assert "does not know" in node.says("grubby --copy-default")
    assert f"lib/modules/{kernel}" in node.says(f"lsinitrd /boot/initramfs-{kernel}.img")
