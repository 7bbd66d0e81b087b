"""What several roles say of a component: its version, its packages, that it must not be there."""

from __future__ import annotations

from gpuprov.model.components import MOVABLE
from gpuprov.model.lock import Component, LockedGroup
from gpuprov.roles.expectation import Expectation

PACKAGE_CHECKS = (
    "driver.packages",
    "fabric_manager.packages",
    "cuda.packages",
    "cudnn.packages",
    "nccl.packages",
    "container_toolkit.packages",
    "containerd.packages",
    "docker.packages",
    "profiling.packages",
    "monitoring.packages",
    "monitoring.dcgm_packages",
)
"""Checks of packages at the lock's versions."""
ABSENT_CHECKS = tuple(f"{name}.absent" for name in MOVABLE if name != "driver")
"""Checks of components that must not be there."""

UNPACKAGED_CHECKS = {
    "driver.unpackaged": ("libcuda.so", "libnvidia-ml.so"),
    "cuda.unpackaged": ("libcudart.so", "libcublas"),
    "cudnn.unpackaged": ("libcudnn",),
    "nccl.unpackaged": ("libnccl.so",),
}
"""Checks of what was installed past the package manager, as a runfile does: how libraries' names begin."""


def closure(component: Component | None) -> dict[str, str]:
    """Package → exact version of a component that is locked; nothing of one that is not."""
    return component.closure if component else {}


def version(component: Component | None) -> str | None:
    """The version of a component that is locked."""
    return component.version if component else None


def packages(check: str, component: Component | None, role: str) -> list[Expectation]:
    """That a component's packages are there at their versions, where it is locked."""
    return [Expectation(check, component.closure, role)] if component else []


def unwanted(group: LockedGroup, name: str) -> list[str]:
    """Expressions of `name=version` for packages of a component that must not be there."""
    pattern = group.components.absent.get(name)
    return [f"{pattern}="] if pattern else []
