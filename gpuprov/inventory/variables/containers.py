"""Variables of `container_toolkit`, `containerd` and `docker`."""

from __future__ import annotations

from typing import Any

from gpuprov.expectations.containers import cri_config, daemon_config
from gpuprov.inventory.variables.unwanted import unwanted
from gpuprov.model.lock import LockedGroup


def containers(group: LockedGroup) -> dict[str, Any]:
    """Packages, and what the daemons are told."""
    docker, toolkit = group.components.docker, group.components.container_toolkit
    containerd = group.components.containerd
    stated = group.setting("containers") or {}
    return {
        "container_toolkit_packages": toolkit.closure if toolkit else {},
        "container_toolkit_unwanted": unwanted(group, "container_toolkit"),
        "container_toolkit_cdi": stated.get("cdi") if toolkit else None,
        "containerd_packages": containerd.closure if containerd else {},
        "containerd_unwanted": unwanted(group, "containerd"),
        "containerd_config": cri_config(group),
        "docker_packages": docker.closure if docker else {},
        "docker_unwanted": unwanted(group, "docker"),
        "docker_config": daemon_config(group),
    }
