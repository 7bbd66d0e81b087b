"""Variables and expectations of Docker and its daemon's defaults for containers."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, unwanted
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import BY_HAND, CONDITION, OTHER_FILE, OTHER_PROGRAM, fails, mends

DOCKER_UNIT = "docker.service"
UNITS = {"docker.unit": DOCKER_UNIT}
CONFIG = "/etc/docker/daemon.json"
RUNTIME = "nvidia"
"""Docker's and containerd's name of the runtime for containers with GPUs."""

OVERRULED = (
    *fails("docker", "docker.config", "a drop-in of docker.service with another --config-file"),
    *fails("containers", "docker.config", "a drop-in of docker.service with another --config-file"),
    *mends("docker", "docker.unit", BY_HAND),
    *fails("docker", "docker.unit", OTHER_FILE, OTHER_PROGRAM, CONDITION),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected packages and unit if Docker is locked, and the required values of daemon.json if
    there are any.
    """
    docker, config = group.components.docker, daemon_config(group)
    role = "docker"
    stated = []
    if docker is not None:
        stated += [
            Expectation("docker.packages", docker.closure, role),
            Expectation("docker.unit", "enabled", role),
        ]
    if config:
        stated.append(Expectation("docker.config", config, role))
    return stated


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return packages, empty if Docker is not locked, and the required values of daemon.json."""
    return {
        "docker_packages": closure(group.components.docker),
        "docker_unwanted": unwanted(group, "docker"),
        "docker_config": daemon_config(group),
    }


def daemon_config(group: LockedGroup) -> dict[str, Any]:
    """Return the required settings of daemon.json, in dockerd's own keys (dockerd(8), "Daemon configuration
    file").

    Empty if neither Docker is locked nor a setting of it stated, or if only another engine is locked.
    """
    components = group.components
    if components.docker is None and (components.containerd or components.podman):
        return {}
    stated = group.setting("containers") or {}
    config: dict[str, Any] = {}
    if stated.get("shm_size") is not None:
        config["default-shm-size"] = stated["shm_size"]
    limits = {name: stated[name] for name in ("memlock", "stack") if stated.get(name) is not None}
    if limits:
        config["default-ulimits"] = {name: _limit(name, value) for name, value in limits.items()}
    if stated.get("cgroup_driver") is not None:
        config["exec-opts"] = [f"native.cgroupdriver={stated['cgroup_driver']}"]
    if stated.get("cdi") is not None:
        config["features"] = {"cdi": stated["cdi"]}
    if components.docker and components.container_toolkit:
        config["runtimes"] = {RUNTIME: {"path": "nvidia-container-runtime"}}
    return config


def _limit(name: str, value: int | str) -> dict[str, Any]:
    """Return a limit in dockerd's format, hard and soft; -1 is unlimited."""
    number = -1 if value == "unlimited" else value
    return {"Name": name, "Hard": number, "Soft": number}
