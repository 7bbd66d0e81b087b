"""A node with the programs of Ubuntu 26.04: dracut instead of initramfs-tools, sudo-rs, uutils, apt 3.

Debian's packages of these programs; see docs/proof.md. The tests build on each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gpuprov.catalog import load
from gpuprov_lab import Lab
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import served
from tests.lab.mirror_node import MirrorNode, ubuntu

pytestmark = pytest.mark.slow
SYSTEM = "ubuntu26.04"
STACK = {"driver": "610.57.04", "cuda": "13.4", "cudnn": "9.28", "nccl": "auto"}
IMAGE = "/boot/initrd.img-{}"
LOADING = ("driver.", "nouveau.")
DRIVER = ("preflight", "nvidia_driver")
OURS = "etc/modprobe.d/gpuprov-nouveau.conf"
NOUVEAU = "/usr/lib/modules/{}/kernel/drivers/gpu/drm/nouveau/nouveau.ko"
NVIDIA = "nvidia nvidia_modeset nvidia_drm nvidia_uvm nvidia_peermem"


@pytest.fixture(scope="module")
def driven(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MirrorNode]:
    """A node that plays Ubuntu 26.04 with a mirror, whose lock states a whole stack; not applied."""
    folder = tmp_path_factory.mktemp("resolute")
    mirror = nvidia.build(folder / "mirror", load(), [SYSTEM])
    with ExitStack() as stack:
        driven = ubuntu(module_lab, folder, mirror, stack.enter_context(served(mirror.root)), SYSTEM)
        driven.state(**STACK)
        yield driven


def listed(driven: MirrorNode) -> str:
    """Return the files in the image of the node's kernel."""
    return driven.says(f"lsinitrd {IMAGE.format(driven.node.kernel)}")


def test_a_fresh_node_gets_everything(driven: MirrorNode) -> None:
    outcome, _ = driven.apply()
    assert outcome.ok, outcome.failed
    outcome, changed = driven.apply()
    assert outcome.ok, outcome.failed
    assert changed == []
    driven.node.reboot()
    assert driven.drift() == {}
    assert driven.failed(*driven.areas, *LOADING) == {}


def test_both_witnesses_see_settings_of_dracut_and_apply_mends_them(driven: MirrorNode) -> None:
    driven.node.run("rm /etc/dracut.conf.d/gpuprov.conf")
    omits = ["dracut does not omit nouveau", "dracut does not omit nova_core"]
    assert driven.drift() == {"driver.next_kernel": omits}
    assert driven.failed(*LOADING).keys() == {"driver.next_kernel"}
    outcome, _ = driven.apply(*DRIVER)
    assert outcome.ok, outcome.failed
    assert driven.drift() == {}
    assert driven.failed(*LOADING) == {}


def test_an_old_image_is_made_again_if_it_has_a_blacklisted_module(driven: MirrorNode) -> None:
    kernel = driven.node.kernel
    image = IMAGE.format(kernel)
    plain = f"mkdir -p /root/none; dracut -q --force --confdir /root/none {image} {kernel} --omit-drivers"
    old = f"touch -d '2020-01-01' {image}"
    driven.node.run(f"{plain} 'nouveau {NVIDIA}'; {old}")
    outcome, changed = driven.apply(*DRIVER)
    assert outcome.ok, outcome.failed
    assert changed == []
    assert driven.failed("nouveau.initramfs") == {}
    driven.node.run(f"{plain} '{NVIDIA}' --include /etc/hostname {NOUVEAU.format(kernel)}; {old}")
    assert driven.failed("nouveau.initramfs").keys() == {"nouveau.initramfs"}
    outcome, changed = driven.apply(*DRIVER)
    assert outcome.ok, outcome.failed
    assert changed == ["Rebuild each initramfs that has a blacklisted module, or an older driver"]
    assert OURS in listed(driven)
    assert driven.failed("nouveau.initramfs") == {}


def test_sudo_rs_takes_the_password_and_a_wrong_one_is_reported(driven: MirrorNode) -> None:
    driven.node.run(
        "useradd --create-home --groups sudo asking; echo asking:secret | chpasswd;"
        " cp -r /root/.ssh /home/asking/; chown -R asking: /home/asking/.ssh"
    )
    login: dict[str, Any] = {"ansible_user": "asking", "ansible_become": True}
    assert driven.apply("preflight", password="secret", **login)[0].ok  # noqa: S106
    outcome, _ = driven.apply("preflight", password="wrong", **login)  # noqa: S106
    assert "Incorrect sudo password" in str(outcome.failed or outcome.unreachable)
