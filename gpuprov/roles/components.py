"""Variables and expectations that several roles share: versions, packages, absence."""

from __future__ import annotations

from gpuprov.model.components import MOVABLE
from gpuprov.model.lock import Component, LockedGroup
from gpuprov.roles.expectation import Expectation

PACKAGE_CHECKS = (
    "driver.packages",
    "fabric_manager.packages",
    "doca_ofed.packages",
    "gds.packages",
    "cuda.packages",
    "cudnn.packages",
    "nccl.packages",
    "container_toolkit.packages",
    "containerd.packages",
    "docker.packages",
    "podman.packages",
    "profiling.packages",
    "monitoring.packages",
    "monitoring.dcgm_packages",
)
"""Checks of packages at the lock's versions."""
ABSENT_CHECKS = tuple(f"{name}.absent" for name in MOVABLE if name != "driver")
"""Checks of components that must be absent."""

UNPACKAGED_CHECKS = {
    "driver.unpackaged": ("libcuda.so", "libnvidia-ml.so"),
    "cuda.unpackaged": ("libcudart.so", "libcublas"),
    "cudnn.unpackaged": ("libcudnn",),
    "nccl.unpackaged": ("libnccl.so",),
}
"""Checks of files installed without the package manager, as by a runfile: prefixes of libraries' names."""


def closure(component: Component | None) -> dict[str, str]:
    """Return package → exact version of a locked component; empty without one."""
    return component.closure if component else {}


def version(component: Component | None) -> str | None:
    """Return the version of a locked component, or None."""
    return component.version if component else None


def packages(check: str, component: Component | None, role: str) -> list[Expectation]:
    """Return the expectation of a locked component's packages at their versions; [] if it is not locked."""
    return [Expectation(check, component.closure, role)] if component else []


def unwanted(group: LockedGroup, name: str) -> list[str]:
    """Return the expression that matches `name=version` of a component's packages in any version, if it must
    be absent, else [].
    """
    pattern = group.components.absent.get(name)
    return [f"{pattern}="] if pattern else []
