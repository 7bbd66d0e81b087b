"""Observations: the value of each expectation in a node's facts, one file per role."""

from __future__ import annotations

from gpuprov.drift.observations import (
    components,
    container_toolkit,
    containerd,
    cuda_toolkit,
    docker,
    fabric_manager,
    firewall,
    gpu_settings,
    hardware,
    monitoring,
    nccl,
    nvidia_driver,
    package_pins,
    podman,
    preflight,
    profiling_tools,
    repositories,
    ssh_hardening,
    storage,
    system_tuning,
    units,
)
from gpuprov.drift.observations.registry import OBSERVERS

__all__ = [
    "OBSERVERS",
    "components",
    "container_toolkit",
    "containerd",
    "cuda_toolkit",
    "docker",
    "fabric_manager",
    "firewall",
    "gpu_settings",
    "hardware",
    "monitoring",
    "nccl",
    "nvidia_driver",
    "package_pins",
    "podman",
    "preflight",
    "profiling_tools",
    "repositories",
    "ssh_hardening",
    "storage",
    "system_tuning",
    "units",
]
