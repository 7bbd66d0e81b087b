"""Containers: Docker, what its daemon is told, and NVIDIA's toolkit that gives GPUs to containers."""

from __future__ import annotations

from typing import Any

from gpuprov.expectations.statement import Expectation
from gpuprov.lock import LockedGroup

DOCKER_UNIT = "docker.service"
CDI_UNIT = "nvidia-cdi-refresh.path"
FORERUNNERS = ("nvidia-docker2", "nvidia-docker", "nvidia-container-runtime")
"""What the toolkit replaced; gone from it with 1.15.0 (its changelog)."""
RUNTIME = "nvidia"


def containers(group: LockedGroup) -> list[Expectation]:
    """Docker and the container toolkit, as far as the lock has them."""
    return [*_toolkit(group), *_docker(group)]


def _toolkit(group: LockedGroup) -> list[Expectation]:
    toolkit = group.components.container_toolkit
    if toolkit is None:
        return []
    role = "container_toolkit"
    stated = [
        Expectation("container_toolkit.packages", toolkit.closure, role),
        Expectation("container_toolkit.forerunners", [], role),
    ]
    cdi = (group.setting("containers") or {}).get("cdi")
    if cdi is not None:
        stated.append(Expectation("container_toolkit.cdi", "enabled" if cdi else "disabled", role))
    return stated


def _docker(group: LockedGroup) -> list[Expectation]:
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


def daemon_config(group: LockedGroup) -> dict[str, Any]:
    """What daemon.json shall hold, in dockerd's own keys (dockerd(8), "Daemon configuration file").

    Nothing where neither Docker is locked nor a default of its stated.
    """
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
    if group.components.docker and group.components.container_toolkit:
        config["runtimes"] = {RUNTIME: {"path": "nvidia-container-runtime"}}
    return config


def _limit(name: str, value: int | str) -> dict[str, Any]:
    """-1 is how dockerd says unlimited."""
    number = -1 if value == "unlimited" else value
    return {"Name": name, "Hard": number, "Soft": number}
