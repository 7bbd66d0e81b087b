"""A kernel without its module does not become GRUB's default.

GRUB's grub-mkconfig, DKMS and the kernels' hooks are real. A lab node has no disk that GRUB can recognise, so
grub-probe is a stub; the driver's source is a small one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gpuprov_lab import Lab, Node
from tests.campaign._small_driver import play_source
from tests.lab.command_line import gpuprov

pytestmark = pytest.mark.slow
PROBE = """#!/bin/sh
case "$*" in *=device*) echo /dev/sda1 ;; *fs_uuid*) echo 0123-abcd ;; *=fs*|*"-t fs"*) echo ext2 ;; esac
"""
GRUB = (
    "apt-get -q update && apt-get -q -y install --no-install-recommends grub2-common </dev/null"
    " && dpkg-divert --quiet --local --rename --add /usr/sbin/grub-probe && cat >/usr/sbin/grub-probe"
    " && chmod 755 /usr/sbin/grub-probe && mkdir -p /boot/grub"
    " && cp /usr/share/grub/default/grub /etc/default/grub && update-grub"
)
NO_INITRAMFS = "echo update_initramfs=no >/etc/initramfs-tools/update-initramfs.conf"
NEXT = "6.99.0-1-amd64"
NEW_KERNEL = f"""set -eu
cp /boot/vmlinuz-$K /boot/vmlinuz-{NEXT}; cp /boot/config-$K /boot/config-{NEXT}
mkdir /lib/modules/{NEXT}; cp /lib/modules/$K/modules.* /lib/modules/{NEXT}; depmod {NEXT}
run-parts --report --exit-on-error --arg={NEXT} --arg=/boot/vmlinuz-{NEXT} /etc/kernel/postinst.d
update-grub  # its own hook does nothing in a container
"""
HEADERS = f"""set -eu
ln -s "$(readlink -f /lib/modules/$K/build)" /lib/modules/{NEXT}/build
run-parts --report --exit-on-error --arg={NEXT} /etc/kernel/header_postinst.d
"""


@dataclass(frozen=True)
class Site:
    """A node with GRUB and with a driver built for the newest of its kernels."""

    node: Node
    folder: Path

    def run(self, script: str) -> str:
        """Run a script with K set to the kernel that has the module; return its output."""
        return self.node.run(f"K={self.node_kernel}; {script}").stdout

    @property
    def node_kernel(self) -> str:
        return str(yaml.safe_load((self.folder / "kernel").read_text()))

    @property
    def default(self) -> str:
        """The default entry in grub.cfg."""
        return re.findall(r'set default="(.*)"', self.run("cat /boot/grub/grub.cfg"))[-1]

    @property
    def kept(self) -> str:
        """The entry of the kernel that has the module."""
        return f"gnulinux-advanced-0123-abcd>gnulinux-{self.node_kernel}-advanced-0123-abcd"

    def witnesses(self) -> tuple[str, str]:
        """Return the output of drift and verify under the lock of the running kernel."""
        drift, verify = (
            gpuprov(self.folder, verb, "--lock", "running.lock.yml", code=None)
            for verb in ("drift", "verify")
        )
        return drift.stdout + drift.stderr, verify.stdout + verify.stderr


@pytest.fixture(scope="module")
def site(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A node that has its driver, with two locks: for the running kernel, and for the kernel by name."""
    folder = tmp_path_factory.mktemp("next-kernel")
    [node] = module_lab.up(1, gpu="a100x4")
    node.run(NO_INITRAMFS)
    play_source(node)
    node.run(GRUB, input=PROBE)
    (folder / "kernel").write_text(node.kernel)
    stated = yaml.safe_load(module_lab.fleet("hgx-a100-4"))
    [group] = stated["groups"].values()
    group["stack"] = {"repository": "distribution"}
    for kernel, name in (("running", "running.lock.yml"), (node.kernel, "fleet.lock.yml")):
        group["settings"]["kernel"] = kernel
        (folder / "fleet.yml").write_text(yaml.safe_dump(stated))
        (folder / "fleet.lock.yml").unlink(missing_ok=True)
        gpuprov(folder, "lock")
        (folder / name).write_text((folder / "fleet.lock.yml").read_text())
    done = gpuprov(folder, "apply", "--role", "repositories", "--role", "nvidia_driver", "--yes", code=None)
    assert "failed" not in done.stdout, done.stdout + done.stderr
    return Site(node, folder)


def test_with_its_module_the_newest_kernel_is_the_default(site: Site) -> None:
    site.run("update-grub")
    assert site.default == "0"


def test_a_new_kernel_without_the_module_is_not(site: Site) -> None:
    site.run(NEW_KERNEL)
    assert site.default == site.kept
    menu = re.findall(r"menuentry_id_option '([^']*)'", site.run("cat /boot/grub/grub.cfg"))
    assert set(site.kept.split(">")) < set(menu)
    assert f"gnulinux-{NEXT}-advanced-0123-abcd" in menu


def test_both_witnesses_say_which_kernel_waits(site: Site) -> None:
    for said in site.witnesses():
        assert re.sub(r"\s+", " ", said).count(f"{NEXT} (held back: {site.node_kernel} boots next)")


def test_a_persons_word_stands_and_is_named(site: Site) -> None:
    site.run("sed -i 's/^GRUB_DEFAULT=.*/GRUB_DEFAULT=saved/' /etc/default/grub; update-grub")
    assert site.default == "${saved_entry}"
    for said in site.witnesses():
        assert f"{NEXT} (boots next: " in re.sub(r"\s+", " ", said)
        assert "/etc/default/grub has GRUB_DEFAULT=saved" in re.sub(r"\s+", " ", said)
    site.run("sed -i 's/^GRUB_DEFAULT=.*/GRUB_DEFAULT=0/' /etc/default/grub; update-grub")
    assert site.default == site.kept


def test_it_is_once_headers_have_brought_its_module(site: Site) -> None:
    site.run(HEADERS)
    assert f"{NEXT}, x86_64: installed" in site.run("dkms status")
    assert site.default == "0"


@pytest.mark.slow
def test_apply_has_grub_choose_once_more(site: Site) -> None:
    site.run(f"dkms uninstall $(dkms status -k {NEXT} | cut -d, -f1) -k {NEXT}")
    words = ("apply", "--full", "--role", "nvidia_driver", "--yes", "--no-verify", "-o", "json")
    for changed in (1, 0):
        done = gpuprov(site.folder, *words, code=None)
        assert [node["changed"] for node in json.loads(done.stdout)["nodes"]] == [changed], done.stdout
        assert site.default == site.kept


@pytest.mark.slow
def test_when_the_kept_kernel_goes_grub_has_another(site: Site) -> None:
    site.run("rm /boot/vmlinuz-$K; update-grub")
    assert site.default == "0"
