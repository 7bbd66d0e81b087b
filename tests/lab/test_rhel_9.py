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
from tests.lab.small_disks import FULL

pytestmark = pytest.mark.slow
STACK = {"driver": "580.126.16", "cuda": "13.0", "cudnn": "9.15", "nccl": "auto"}
LOADING = ("driver.", "nouveau.")
LOCKS = "/etc/dnf/plugins/versionlock.list"


@pytest.fixture(scope="module")
def node(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RockyNode]:
    """A node of Rocky Linux 9 with a mirror, whose lock states a whole stack; not applied."""
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


def test_a_fresh_node_gets_everything_and_a_second_run_changes_nothing(node: RockyNode) -> None:
    outcome, _ = node.apply()
    assert outcome.ok, outcome.failed
    wanted = {name: full for _, each in node.group.components.each() for name, full in each.closure.items()}
    assert wanted["nvidia-driver-cuda"] == "3:580.126.16-1.el9"
    assert wanted.items() <= node.installed.items()
    assert "stream=580-open" in node.says("cat /etc/dnf/modules.d/nvidia-driver.module")
    assert "installed" in node.says("dkms status nvidia/580.126.16")
    outcome, changed = node.apply()
    assert outcome.ok, outcome.failed
    assert changed == []
    node.node.reboot()
    assert node.drift() == {}
    assert node.failed() == node.failed(*LOADING) == {}


def test_full_temporary_folders_change_no_verdict_and_prevent_no_change(node: RockyNode) -> None:
    for folder in ("/tmp", "/var/tmp"):
        node.node.run(FULL.format(folder=folder))
    try:
        assert node.drift() == {}
        assert node.failed() == {}
        node.node.run("rpm --erase --nodeps libnccl-devel")
        outcome, _ = node.apply()
        assert outcome.ok, outcome.failed
        assert node.failed() == {}
    finally:
        for folder in ("/tmp", "/var/tmp"):
            node.node.run(f"umount {folder}")


def test_a_package_that_was_upgraded_by_hand_goes_back(node: RockyNode) -> None:
    locked = node.installed["libnccl"]
    assert "libnccl" not in node.says("dnf --assumeno upgrade")
    node.node.run("dnf -q -y --disableplugin=versionlock upgrade libnccl libnccl-devel")
    newer = node.installed["libnccl"]
    assert newer != locked
    both = {"libnccl": newer, "libnccl-devel": newer}
    assert node.drift().keys() == {"nccl.packages", "pins.hold"}
    assert node.drift()["nccl.packages"] == both
    assert node.failed().keys() == {"nccl.packages", "nccl.library", "pins.hold"}
    outcome, _ = node.apply()
    assert "dnf would downgrade libnccl, libnccl-devel" in outcome.failed[0]["msg"]
    assert node.installed["libnccl"] == newer
    outcome, _ = node.apply(packages_allow_downgrade=True)
    assert outcome.ok, outcome.failed
    assert node.installed["libnccl"] == locked
    assert node.drift() == node.failed() == {}


@pytest.mark.parametrize(
    "change",
    [
        f"sed -i /^libnccl-0:/d {LOCKS}",
        "sed -i s/enabled.*/enabled=0/ /etc/dnf/plugins/versionlock.conf",
    ],
    ids=["a line", "the plugin"],
)
def test_a_lock_without_effect_is_seen_by_both(node: RockyNode, change: str) -> None:
    node.node.run(f"cp -a /etc/dnf/plugins /root/plugins; {change}")
    assert node.drift().keys() == {"pins.hold"}
    assert {"pins.hold", "pins.simulated"} >= node.failed().keys() >= {"pins.hold"}
    if "enabled" in change:
        outcome, _ = node.apply("package_pins")
        assert "dnf's plugin of version locks is switched off" in outcome.failed[0]["msg"]
        node.node.run("cp -a /root/plugins/. /etc/dnf/plugins/")
    else:
        outcome, changed = node.apply("package_pins")
        assert outcome.ok, outcome.failed
        assert len(changed) == 1
    node.node.run("rm -r /root/plugins")
    assert node.drift() == node.failed() == {}


def test_another_version_keeps_the_locks_of_others(node: RockyNode) -> None:
    before = node.installed
    node.state(**{**STACK, "nccl": "2.28.9"})
    node.node.run(f"echo 'dkms-0:3.2.2-1.el9.*' >>{LOCKS}")
    outcome, _ = node.apply(packages_allow_downgrade=True)
    assert outcome.ok, outcome.failed
    assert node.installed["libnccl"].startswith("2.28.9-")
    assert "dkms-0:3.2.2-1.el9.*" in node.says(f"cat {LOCKS}")
    assert node.says(f"grep -c ^libnccl-0: {LOCKS}") == "1"
    node.state(**STACK)
    outcome, _ = node.apply(packages_allow_downgrade=True)
    assert outcome.ok, outcome.failed
    assert node.installed == before


def test_another_key_of_the_repository_is_seen_by_both_and_written_again(node: RockyNode) -> None:
    node.node.run("echo >>/etc/yum.repos.d/gpuprov.repo; echo '# more' >>/etc/yum.repos.d/gpuprov.repo")
    node.node.run("echo none >/etc/pki/rpm-gpg/gpuprov-nvidia.asc")
    assert node.drift().keys() == node.failed().keys() == {"repositories.file"}
    outcome, _ = node.apply("repositories")
    assert outcome.ok, outcome.failed
    assert node.drift() == node.failed() == {}


def test_a_key_of_an_earlier_lock_is_seen_by_both_and_removed(node: RockyNode) -> None:
    folder = "/etc/pki/rpm-gpg"
    node.node.run(f"cp {folder}/gpuprov-nvidia.asc {folder}/gpuprov-earlier.asc")
    assert node.drift().keys() == node.failed().keys() == {"repositories.file"}
    _, said = node.apply("repositories", check=True)
    outcome, changed = node.apply("repositories")
    assert outcome.ok, outcome.failed
    assert said == changed == ["Remove the keys of repositories that the lock no longer states"]
    assert node.drift() == node.failed() == {}


ENTRY_HOOK = "/etc/kernel/install.d/95-gpuprov.install"
NEWER = "5.14.0-570.9999.1.el9_6.x86_64"


def test_a_new_kernel_without_its_module_does_not_boot(node: RockyNode) -> None:
    """Add a kernel without a module, as kernel-install does, then give it one."""
    kernel = node.node.kernel
    node.state(**STACK)
    entries = "/boot/loader/entries/0123456789abcdef0123456789abcdef"
    node.node.run(
        f"cp /boot/vmlinuz-{kernel} /boot/vmlinuz-{NEWER}; mkdir /lib/modules/{NEWER}; depmod {NEWER};"
        f" sed s/{kernel}/{NEWER}/ {entries}-{kernel}.conf >{entries}-{NEWER}.conf;"
        f" grubby --set-default /boot/vmlinuz-{NEWER}"
    )
    node.node.run(f"{ENTRY_HOOK} add {NEWER} /boot/none /boot/vmlinuz-{NEWER}")
    assert node.says("grubby --default-kernel") == f"/boot/vmlinuz-{kernel}"
    node.settings["kernel"] = "running"
    node.state(**STACK)
    held = f"{NEWER} (held back: {kernel} boots next)"
    assert f"none for kernel {held}" in node.drift()["driver.module_on_disk"]
    assert node.failed("driver.")["driver.module_on_disk"][held] is None
    node.node.run(f"cp -a /lib/modules/{kernel}/. /lib/modules/{NEWER}/; depmod {NEWER}; {ENTRY_HOOK} choose")
    assert node.says("grubby --default-kernel") == f"/boot/vmlinuz-{NEWER}"
    node.node.run(f"rm -r /lib/modules/{NEWER} /boot/vmlinuz-{NEWER} {entries}-{NEWER}.conf")
    node.node.run(f"grubby --set-default /boot/vmlinuz-{kernel}; chmod -x {ENTRY_HOOK}")
    del node.settings["kernel"]
    node.state(**STACK)
    found = {"driver.next_kernel": [f"{ENTRY_HOOK} does not run"]}
    assert node.drift("driver.next_kernel") == node.failed("driver.next_kernel") == found
    outcome, _ = node.apply("nvidia_driver")
    assert outcome.ok, outcome.failed
    assert node.drift() == node.failed("driver.next_kernel") == {}


def test_a_package_in_two_versions_is_seen_by_both_and_mended(node: RockyNode) -> None:
    """Leave a package in two versions, as dnf does if it is killed between installation and removal."""
    fetch, locked = "cd /root && dnf -q download --disableplugin=versionlock", node.installed["libnccl"]
    node.node.run(f"{fetch} libnccl && {fetch} --destdir locked libnccl-{locked}")
    node.node.run("rpm --upgrade --nodeps --force-debian /root/libnccl-*.rpm")
    node.node.run("rpm --install --oldpackage --force --nodeps --force-debian /root/locked/*.rpm")
    assert node.drift("dpkg.") == node.failed("dpkg.") == {"dpkg.consistent": ["libnccl in two versions"]}
    outcome, changed = node.apply("preflight")
    assert outcome.ok, outcome.failed
    assert changed == ["Remove the older version of packages that a killed dnf left in two"]
    assert node.installed["libnccl"] == locked
    assert node.drift() == node.failed() == {}


def test_another_branch_comes_from_another_stream(node: RockyNode) -> None:
    node.state(**{**STACK, "driver": "595.71.05"})
    outcome, _ = node.apply()
    assert outcome.ok, outcome.failed
    assert "stream=595-open" in node.says("cat /etc/dnf/modules.d/nvidia-driver.module")
    assert node.installed["nvidia-driver-cuda"] == "3:595.71.05-1.el9"
    assert node.drift("driver.packages", "pins.") == node.failed("driver.packages", "pins.") == {}


def test_a_changed_file_of_a_package_is_seen_by_both_until_it_is_installed_again(node: RockyNode) -> None:
    """Change a file without its size and time, then its mode; the command of the message brings it back."""
    package, path = "nvidia-persistenced", "/usr/bin/nvidia-persistenced"
    assert node.says(f"rpm -qf --qf '%{{NAME}}' {path}") == package
    node.node.run(f"cp -p {path} /root/kept; sed -i 's/a stub/A stub/' {path}; touch -r /root/kept {path}")
    assert node.drift("pins.") == node.failed("pins.") == {"pins.files": [f"{package} {path} was changed"]}
    outcome, _ = node.apply("package_pins")
    assert outcome.ok, outcome.failed
    assert node.drift("pins.").keys() == {"pins.files"}, (
        "a further apply takes the changed file for the package's"
    )
    node.node.run(f"dnf -q -y reinstall {package}-{node.installed[package]}")
    assert node.drift("pins.") == node.failed("pins.") == {}
    node.node.run(f"chmod 700 {path}")
    assert (
        node.drift("pins.")
        == node.failed("pins.")
        == {"pins.files": [f"{package} {path} has another mode or owner"]}
    )
    node.node.run(f"rpm --setperms {package}")
    assert node.drift("pins.") == node.failed("pins.") == {}
