"""Variables of `nvidia_driver`."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup

INDEPENDENT = "nvidia-(?:settings|xconfig)="
"""Tools that Debian keeps at versions of their own."""

PRECOMPILED = r"linux-(?:modules|objects|signatures)-nvidia-(?!{branch}-)\d+-"
"""Modules of other branches, whose packages have the version of their kernel."""


def driver(group: LockedGroup) -> dict[str, Any]:
    """Versions, packages, kernel; everything that moves with the driver is of its one set."""
    driver = group.components.driver
    moving = [component for _, component in group.components.with_driver()]
    return {
        "nvidia_driver_version": driver.version,
        "nvidia_driver_branch": driver.branch,
        "nvidia_driver_module": driver.module,
        "nvidia_driver_module_package": driver.module_package,
        "nvidia_driver_packages": {name: full for each in moving for name, full in each.closure.items()},
        "nvidia_driver_beside": [name for each in moving for name in each.beside],
        "nvidia_driver_unwanted": other_branches(driver.hold_patterns, driver.branch),
        "nvidia_driver_target_kernel": group.setting("kernel") or "running",
    }


def other_branches(hold_patterns: list[str], branch: int) -> list[str]:
    """Expressions for `name=version` of driver packages whose version is of another branch."""
    version = rf"=(?:\d+:)?(?!{branch}\.)\d{{3}}\.\d"
    found = [f"(?!{INDEPENDENT}){pattern.removesuffix('$')}{version}" for pattern in hold_patterns]
    return [*found, PRECOMPILED.format(branch=branch)]
