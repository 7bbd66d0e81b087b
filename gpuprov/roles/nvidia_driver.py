"""Variables and expectations of the driver: packages, modules on disk and in the kernel."""

from __future__ import annotations

import re
from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import fails, mends

FOREIGN_MODULES = ("nouveau", "nova_core")
LOADED = ("nvidia", "nvidia-uvm")
"""Modules that CUDA needs: the others (modeset, drm) are for displays, and sites disable them on purpose."""
_FILE = r"nvidia(?:[-_](?:current|tesla))?(?:[-_]\d+)?(?:[-_]open)?"
FILES = {"nvidia": re.compile(_FILE), "nvidia-uvm": re.compile(rf"{_FILE}[-_]uvm")}
"""Module → names of its file, in either spelling: Debian has its own. The probe has them too, as `FILE`."""
NARROWING = ("NVreg_ExcludedGpus", "NVreg_GpuBlacklist", "NVreg_AssignGpus", "NVreg_NvLinkDisable")
"""Options of the module that take GPUs or links away, unless they are empty or 0."""
GUARD = "/etc/default/grub.d/zz-gpuprov.cfg"
"""gpuprov's part of GRUB's settings: a kernel without the module does not boot by default."""
DKMS_HOOKS = (
    "/etc/kernel/postinst.d/dkms",
    "/etc/kernel/header_postinst.d/dkms",
    "/etc/kernel/header_postinst.d/zz-gpuprov",
)
"""Programs that a new kernel's packages run: DKMS builds the module, and GRUB chooses again."""
BLS_ENTRIES = "/boot/loader/entries"
"""Folder of boot entries where kernels are added by kernel-install(8) and not by grub-mkconfig."""
BLS_HOOKS = ("/usr/lib/kernel/install.d/40-dkms.install",)
"""Programs that kernel-install runs for a new kernel, on such a node."""
BLS_GUARD = "/etc/kernel/install.d/95-gpuprov.install"
"""gpuprov's program among them: a kernel without the module does not boot by default."""
HELD_BACK = "/var/lib/gpuprov/held-back-kernel"
"""Record of that program: the kernel without the module, and the one that boots in its place."""
DKMS_FOLDERS = {"dkms_tree": "/var/lib/dkms", "source_tree": "/usr/src", "install_tree": "/lib/modules"}
"""Folders of DKMS that its framework.conf can change."""


INDEPENDENT = "(?:nvidia-settings|nvidia-xconfig|libxnvctrl0)="
"""Tools and their library, which have their own versions in Debian and Ubuntu; Open MPI needs the library."""
PRECOMPILED = r"linux-(?:modules|objects|signatures)-nvidia-(?!{branch}-)\d+-"
"""Modules of other branches, whose packages have their kernel's version."""

OVERRULED = (
    *fails(
        "driver",
        "driver.unpackaged",
        "remains of NVIDIA's runfile",
        "another nvidia-smi in a folder of PATH",
        "a library without a package in the linker's path",
        "a folder of ld.so.conf.d",
        "LD_LIBRARY_PATH of logins or services",
        "/etc/ld.so.preload, or LD_PRELOAD of logins or services",
    ),
    *mends("driver", "driver.module_on_disk", "another module in place of the DKMS build"),
    *fails(
        "driver",
        "driver.loading",
        "an install line of modprobe.d",
        "a blacklist of nvidia in modprobe.d",
        "an alias of modprobe.d for the module or the GPUs",
        "a softdep that loads nouveau first",
        "an option that takes GPUs or links away",
        "the kernel's command line (module_blacklist=nvidia)",
        "grub.cfg, for the next boot (module_blacklist=nvidia)",
    ),
    *mends("driver", "driver.initramfs", "an initramfs with the modules of an older driver"),
    *fails(
        "driver",
        "driver.next_kernel",
        "AUTOINSTALL in dkms.conf or /etc/dkms",
        "/etc/dkms/no-autoinstall",
        "a kernel's hook of DKMS that is missing or not executable",
        "another folder in DKMS's framework.conf",
    ),
    *mends("driver", "driver.next_kernel", "gpuprov's part of GRUB's settings removed"),
    *mends("driver", "driver.next_kernel", "gpuprov's program for boot entries removed or not executable"),
    *mends("kernel", "driver.module_on_disk", "GRUB_DEFAULT, which boots another kernel"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected driver on disk and in the kernel, also of the next boot and of a new kernel, and
    that nouveau is neither loaded nor allowed.

    The kernel's headers are expected only where each node compiles, signatures only if the fleet signs.
    """
    driver = group.components.driver
    role = "nvidia_driver"
    kernel = group.setting("kernel") or "running"
    headers = Expectation("kernel.headers", kernel, role, subject=kernel)
    return [
        Expectation("driver.packages", driver.closure, role),
        Expectation("driver.unpackaged", [], role),
        *([headers] if driver.compiled and not driver.shared else []),
        Expectation("driver.module_on_disk", driver.version, role, subject=kernel),
        Expectation("driver.module_flavour", driver.module, role, subject=kernel),
        Expectation("driver.loading", [], role, subject=kernel),
        Expectation("driver.initramfs", [], role, subject=kernel),
        Expectation("driver.next_kernel", [], role, subject=_built_by_dkms(group)),
        *([signature] if (signature := _signature(group, kernel)) else []),
        Expectation("nouveau.blacklist", list(FOREIGN_MODULES), role),
        Expectation("nouveau.loaded", [], None, reboot=True),
        Expectation("driver.loaded", driver.version, None, reboot=True),
        Expectation("driver.answers", True, None, reboot=True),
    ]


def _built_by_dkms(group: LockedGroup) -> str | None:
    """Return the driver's version if DKMS of each node builds its module for a new kernel.

    None for the distribution's modules, which are locked packages, and for modules that only builders
    compile: until a node gets them, GRUB holds the new kernel back.
    """
    driver = group.components.driver
    return driver.version if driver.compiled and not driver.shared else None


def _signature(group: LockedGroup, kernel: str) -> Expectation | None:
    """Return the expected signature of the fleet on a compiled module.

    None for the distribution's modules, or if the fleet does not sign.
    """
    if group.secure_boot is None or not group.components.driver.compiled:
        return None
    return Expectation("module.signature", group.secure_boot.signature, "nvidia_driver", subject=kernel)


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return versions, packages and kernel; packages that change with the driver are in its set. Also
    expressions for packages of other branches, and the stream of the module if it has one.

    `nvidia_driver_module_build` and `nvidia_driver_only_builder` are left out unless only builders compile.
    """
    driver = group.components.driver
    moving = [component for _, component in group.components.with_driver()]
    return {
        "nvidia_driver_version": driver.version,
        "nvidia_driver_module": driver.module,
        "nvidia_driver_module_package": driver.module_package,
        "nvidia_driver_packages": {name: full for each in moving for name, full in each.closure.items()},
        "nvidia_driver_beside": [name for each in moving for name in each.beside],
        **({"nvidia_driver_streams": [driver.stream]} if driver.stream else {}),
        "nvidia_driver_unwanted": other_branches(driver.hold_patterns, driver.branch),
        "nvidia_driver_target_kernel": group.setting("kernel") or "running",
        **({"nvidia_driver_module_build": "once"} if driver.shared else {}),
        **({"nvidia_driver_only_builder": list(driver.builders)} if _others_never_compile(group) else {}),
    }


def _others_never_compile(group: LockedGroup) -> bool:
    """Return whether only builders may compile: the others have no compiler, or the site's key must sign."""
    driver = group.components.driver
    return driver.compiler is not None or (group.secure_boot is not None and driver.shared)


def other_branches(hold_patterns: list[str], branch: int) -> list[str]:
    """Return expressions for `name=version` of the driver packages and modules of other branches. Tools with
    their own versions are left out.
    """
    version = rf"=(?:\d+:)?(?!{branch}\.)\d{{3}}\.\d"
    found = [f"(?!{INDEPENDENT}){pattern.removesuffix('$')}{version}" for pattern in hold_patterns]
    return [*found, PRECOMPILED.format(branch=branch)]
