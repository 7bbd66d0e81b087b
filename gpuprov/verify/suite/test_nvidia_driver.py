"""Checks of the driver: module on disk and in the kernel, library, nvidia-smi."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.nvidia_driver import FOREIGN_MODULES

if TYPE_CHECKING:
    from gpuprov.verify.nodes import NodeUnderTest
    from gpuprov.verify.observers import Node

PROC = "cat /proc/driver/nvidia/version"
"""Commands whose output is shown when a check fails."""
KERNEL_LOG = "dmesg | grep -iE 'nvrm|nvidia|nouveau'"
BUILD_LOG = "tail -n 15 /var/lib/dkms/nvidia*/*/build/make.log"


@pytest.mark.check("kernel.headers", "ls -d /lib/modules/*/build", "uname -r")
def test_headers_of_the_target_kernel_are_there(host: Node, kernels: list[str]) -> None:
    """Check that every kernel of the fixture `kernels` has headers to build modules with."""
    found = host.run("ls -d /lib/modules/*/build/Makefile").stdout.split()
    with_headers = {path.split("/")[3] for path in found}
    assert [kernel for kernel in kernels if kernel in with_headers] == kernels


@pytest.mark.check("driver.dkms", "dkms status", BUILD_LOG)
def test_dkms_built_the_module(host: Node, kernels: list[str], expected: dict[str, str]) -> None:
    """Check that DKMS has installed the locked driver, and no other version, for every kernel."""
    states = {kernel: host.nvidia_driver.dkms_state(kernel) for kernel in kernels}
    assert states == dict.fromkeys(kernels, expected)


@pytest.mark.check("driver.module_on_disk", "dkms status", BUILD_LOG)
def test_module_on_disk_has_the_version(host: Node, kernels: list[str], expected: str) -> None:
    """Check that the module that modprobe would load has the locked version, for every kernel."""
    driver = host.nvidia_driver
    modules = {driver.label(kernel): driver.on_disk(kernel) for kernel in kernels}
    versions = {kernel: module and module.version for kernel, module in modules.items()}
    assert versions == dict.fromkeys(modules, expected)


@pytest.mark.check("driver.module_flavour", "dkms status")
def test_module_is_of_the_flavour(host: Node, kernels: list[str], expected: str) -> None:
    """Check that the module that modprobe would load is open or proprietary as locked, for every kernel."""
    modules = {kernel: host.nvidia_driver.on_disk(kernel) for kernel in kernels}
    flavours = {kernel: module and module.flavour for kernel, module in modules.items()}
    assert flavours == dict.fromkeys(kernels, expected)


@pytest.mark.check(
    "driver.loading", "modprobe --showconfig | grep -E '^(install|blacklist|alias|softdep|options).*nvidia'"
)
def test_modprobe_loads_the_module(host: Node, kernels: list[str], expected: list[str]) -> None:
    """Check that nothing keeps modprobe from loading the driver under each kernel that has its module."""
    with_module = [kernel for kernel in kernels if host.nvidia_driver.on_disk(kernel)]
    assert [each for kernel in with_module for each in host.module_loading.hindrances(kernel)] == expected


@pytest.mark.check("driver.next_kernel", "ls -l /etc/kernel/*.d /etc/dkms")
def test_a_new_kernel_gets_its_module(host: Node, node: NodeUnderTest, expected: list[str]) -> None:
    """Check that hooks and settings let a new kernel get the driver's module."""
    version = node.wanted["driver.next_kernel"].subject
    assert host.module_loading.obstacles(version) == expected


@pytest.mark.check(
    "module.signature", "modinfo -F signer nvidia-current 2>/dev/null || modinfo -F signer nvidia", KERNEL_LOG
)
def test_every_module_has_the_signature(host: Node, kernels: list[str], expected: str) -> None:
    """Check that every file of the driver's modules has the expected signature.

    A kernel without modules fails.
    """
    signatures = {kernel: host.nvidia_driver.signatures(kernel) for kernel in kernels}
    assert all(signatures.values()), f"no modules: {signatures}"
    assert {each for found in signatures.values() for each in found.values()} == {expected}


@pytest.mark.check("driver.library", "ldconfig -p | grep libnvidia-ml")
def test_library_has_the_version(host: Node, expected: str) -> None:
    """Check that the libnvidia-ml that programs load has the locked version."""
    assert host.nvidia_driver.library_version == expected


@pytest.mark.check("driver.loaded", PROC, KERNEL_LOG)
def test_loaded_module_has_the_version(host: Node, expected: str) -> None:
    """Check that the loaded module has the locked version."""
    module = host.nvidia_driver.loaded
    assert (module and module.version) == expected


@pytest.mark.check("driver.answers", "nvidia-smi", KERNEL_LOG)
def test_driver_answers(host: Node, expected: bool) -> None:
    """Check that nvidia-smi succeeds; otherwise its message is the actual value."""
    assert (host.gpu.complaint or True) == expected


@pytest.mark.check("driver.four_versions", "nvidia-smi", PROC)
def test_four_versions_agree(
    host: Node, group: LockedGroup, kernels: list[str], expected: dict[str, str]
) -> None:
    """Check that package, module on disk, loaded module and nvidia-smi have the locked version.

    The module on disk is that of the first kernel of the fixture `kernels`.
    """
    driver = host.nvidia_driver
    on_disk, loaded = driver.on_disk(kernels[0]), driver.loaded
    seen = {
        "package": driver.package_version(group.components.driver.version_package),
        "module on disk": on_disk and on_disk.version,
        "module loaded": loaded and loaded.version,
        "nvidia-smi": driver.reported_version,
    }
    assert seen == expected


@pytest.mark.check("nouveau.loaded", "lsmod | grep -E 'nouveau|nova_core'")
def test_foreign_modules_are_not_loaded(host: Node, expected: list[str]) -> None:
    """Check that neither nouveau nor another foreign module is loaded."""
    loaded = [name for name in FOREIGN_MODULES if host.file(f"/sys/module/{name}").exists]
    assert loaded == expected


@pytest.mark.check("nouveau.blacklist", "grep -rs -e nouveau -e nova_core /etc/modprobe.d")
def test_foreign_modules_are_blacklisted(host: Node, expected: list[str]) -> None:
    """Check that modprobe's effective configuration blacklists the foreign modules."""
    assert [name for name in expected if name in host.nvidia_driver.blacklisted] == expected


@pytest.mark.check("driver.initramfs", "ls -l /boot")
def test_initramfs_has_no_older_driver(host: Node, kernels: list[str], expected: list[str]) -> None:
    """Check that no kernel's initramfs has NVIDIA's modules and is older than its module on disk."""
    assert [path for kernel in kernels for path in host.module_loading.old_initramfs(kernel)] == expected


@pytest.mark.check("nouveau.initramfs", "ls -l /boot")
def test_initramfs_does_not_load_foreign_modules(host: Node, kernels: list[str], expected: list[str]) -> None:
    """Check that the initramfs of each kernel has no foreign module, or contains the blacklist."""
    inside = {name for kernel in kernels for name in host.nvidia_driver.foreign_in_initramfs(kernel)}
    assert sorted(inside) == expected
