"""The driver: packages, module on disk, module loaded, nothing foreign."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import fails, mends

FOREIGN_MODULES = ("nouveau", "nova_core")


INDEPENDENT = "nvidia-(?:settings|xconfig)="
"""Tools that Debian keeps at versions of their own."""
PRECOMPILED = r"linux-(?:modules|objects|signatures)-nvidia-(?!{branch}-)\d+-"
"""Modules of other branches, whose packages have the version of their kernel."""

OVERRULED = (
    *fails(
        "driver",
        "driver.unpackaged",
        "what NVIDIA's runfile left",
        "a library where the linker looks, without a package",
        "a folder of ld.so.conf.d",
        "LD_LIBRARY_PATH of logins or services",
    ),
    *mends("driver", "driver.module_on_disk", "another module in the place of DKMS's"),
    *mends("kernel", "driver.module_on_disk", "GRUB_DEFAULT, which boots another kernel"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """The driver of the lock, on disk and in the kernel."""
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
        *([signature] if (signature := _signature(group, kernel)) else []),
        Expectation("nouveau.blacklist", list(FOREIGN_MODULES), role),
        Expectation("nouveau.loaded", [], None, reboot=True),
        Expectation("driver.loaded", driver.version, None, reboot=True),
        Expectation("driver.answers", True, None, reboot=True),
    ]


def _signature(group: LockedGroup, kernel: str) -> Expectation | None:
    """The fleet's own signature on what was compiled; the distribution signs what it compiles."""
    if group.secure_boot is None or not group.components.driver.compiled:
        return None
    return Expectation("module.signature", group.secure_boot.signature, "nvidia_driver", subject=kernel)


def variables(group: LockedGroup) -> dict[str, Any]:
    """Versions, packages, kernel; everything that moves with the driver is of its one set."""
    driver = group.components.driver
    moving = [component for _, component in group.components.with_driver()]
    return {
        "nvidia_driver_version": driver.version,
        "nvidia_driver_module": driver.module,
        "nvidia_driver_module_package": driver.module_package,
        "nvidia_driver_packages": {name: full for each in moving for name, full in each.closure.items()},
        "nvidia_driver_beside": [name for each in moving for name in each.beside],
        "nvidia_driver_unwanted": other_branches(driver.hold_patterns, driver.branch),
        "nvidia_driver_target_kernel": group.setting("kernel") or "running",
        **({"nvidia_driver_module_build": "once"} if driver.shared else {}),
        **({"nvidia_driver_only_builder": driver.builder} if driver.compiler else {}),
    }


def other_branches(hold_patterns: list[str], branch: int) -> list[str]:
    """Expressions for `name=version` of driver packages whose version is of another branch."""
    version = rf"=(?:\d+:)?(?!{branch}\.)\d{{3}}\.\d"
    found = [f"(?!{INDEPENDENT}){pattern.removesuffix('$')}{version}" for pattern in hold_patterns]
    return [*found, PRECOMPILED.format(branch=branch)]
