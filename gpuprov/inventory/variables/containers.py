"""Variables of `container_toolkit` and `docker`."""

from __future__ import annotations

from typing import Any

from gpuprov.expectations.containers import daemon_config
from gpuprov.inventory.variables.unwanted import unwanted
from gpuprov.lock import LockedGroup


def containers(group: LockedGroup) -> dict[str, Any]:
    """Packages, and what the daemon is told."""
    docker, toolkit = group.components.docker, group.components.container_toolkit
    stated = group.setting("containers") or {}
    return {
        "container_toolkit_packages": toolkit.closure if toolkit else {},
        "container_toolkit_unwanted": unwanted(group, "container_toolkit"),
        "container_toolkit_cdi": stated.get("cdi") if toolkit else None,
        "docker_packages": docker.closure if docker else {},
        "docker_unwanted": unwanted(group, "docker"),
        "docker_config": daemon_config(group),
    }
