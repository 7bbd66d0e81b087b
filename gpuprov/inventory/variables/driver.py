"""Variables of `nvidia_driver`."""

from __future__ import annotations

from typing import Any

from gpuprov.lock import LockedGroup


def driver(group: LockedGroup) -> dict[str, Any]:
    """Versions, packages, repositories, kernel."""
    driver = group.components.driver
    return {
        "nvidia_driver_version": driver.version,
        "nvidia_driver_branch": driver.branch,
        "nvidia_driver_module": driver.module,
        "nvidia_driver_module_package": driver.module_package,
        "nvidia_driver_packages": driver.closure,
        "nvidia_driver_repositories": [
            {"id": name, **repository.model_dump(exclude={"source"})}
            for name, repository in group.repositories.items()
        ],
        "nvidia_driver_target_kernel": group.setting("kernel") or "running",
    }
