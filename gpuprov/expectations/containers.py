"""Containers: Docker, containerd, what each is told, and NVIDIA's toolkit that gives GPUs to containers."""

from __future__ import annotations

from typing import Any

from gpuprov.expectations.statement import Expectation
from gpuprov.model.lock import LockedGroup

DOCKER_UNIT = "docker.service"
CONTAINERD_UNIT = "containerd.service"
CDI_UNIT = "nvidia-cdi-refresh.path"
FORERUNNERS = ("nvidia-docker2", "nvidia-docker", "nvidia-container-runtime")
"""What the toolkit replaced; gone from it with 1.15.0 (its changelog)."""
RUNTIME = "nvidia"
RUNC = "io.containerd.runc.v2"
"""What containerd calls the way in which it runs runc, and anything that is called as runc is."""
CRI = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
"""The plugin that Kubernetes talks to, by its names from containerd 2.0 on and before."""


def containers(group: LockedGroup) -> list[Expectation]:
    """The container toolkit, containerd and Docker, as far as the lock has them."""
    return [*_toolkit(group), *_containerd(group), *_docker(group)]


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


def _containerd(group: LockedGroup) -> list[Expectation]:
    containerd, role = group.components.containerd, "containerd"
    if containerd is None:
        return []
    return [
        Expectation("containerd.packages", containerd.closure, role),
        Expectation("containerd.unit", "enabled", role),
        Expectation("containerd.config", cri_config(group), role),
    ]


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

    Nothing where neither Docker is locked nor a default of its stated, or containerd alone is meant.
    """
    if group.components.containerd and not group.components.docker:
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
    if group.components.docker and group.components.container_toolkit:
        config["runtimes"] = {RUNTIME: {"path": "nvidia-container-runtime"}}
    return config


def cri_config(group: LockedGroup) -> dict[str, Any]:
    """What config.toml of containerd shall hold of the plugin that Kubernetes talks to, in its own keys.

    Kubelet has systemd make its control groups unless told otherwise, and both have to agree (Kubernetes'
    "Container runtimes"). A runtime's type is always named: containerd forgets runc's own where a file speaks
    of runc. Nothing where containerd is not locked.
    """
    if group.components.containerd is None:
        return {}
    stated = group.setting("containers") or {}
    options = {"SystemdCgroup": stated.get("cgroup_driver") != "cgroupfs"}
    runtimes: dict[str, Any] = {"runc": {"runtime_type": RUNC, "options": options}}
    if group.components.container_toolkit:
        options = {"BinaryName": "/usr/bin/nvidia-container-runtime", **options}
        runtimes[RUNTIME] = {"runtime_type": RUNC, "options": options}
    table: dict[str, Any] = {"containerd": {"runtimes": runtimes}}
    if stated.get("default_runtime") is not None:
        table["containerd"]["default_runtime_name"] = stated["default_runtime"]
    if stated.get("cdi") is not None:
        table["enable_cdi"] = stated["cdi"]
    return table


def _limit(name: str, value: int | str) -> dict[str, Any]:
    """-1 is how dockerd says unlimited."""
    number = -1 if value == "unlimited" else value
    return {"Name": name, "Hard": number, "Soft": number}
