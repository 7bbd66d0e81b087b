"""What stands on the driver: fabric manager, CUDA toolkits, cuDNN, NCCL."""

from __future__ import annotations

from gpuprov.expectations.statement import Expectation
from gpuprov.model.lock import LockedGroup

FABRIC_UNIT = "nvidia-fabricmanager.service"
CUDA_LINK = "/etc/alternatives/cuda"
"""Where /usr/local/cuda leads, by Debian's alternatives."""
CUDA_PROFILE = "/etc/profile.d/gpuprov-cuda.sh"
CUDA_HOME = "/usr/local/cuda"


def fabric(group: LockedGroup) -> list[Expectation]:
    """Fabric manager and what else moves with the driver: one transaction, so the driver's role."""
    moving = [each for name, each in group.components.with_driver() if name != "driver"]
    packages = {name: full for each in moving for name, full in each.closure.items()}
    stated = [Expectation("fabric_manager.packages", packages, "nvidia_driver")] if packages else []
    if group.components.fabricmanager is None:
        return stated
    role = "fabric_manager"
    return [
        *stated,
        Expectation("fabric_manager.unit", "enabled", role, subject=group.components.fabricmanager.version),
        Expectation("fabric_manager.fabric", "Completed", role, needs_driver=True),
    ]


def libraries(group: LockedGroup) -> list[Expectation]:
    """Toolkits and libraries, as far as the lock has them."""
    return [*_cuda(group), *_packages(group, "cudnn"), *_packages(group, "nccl"), *_nccl(group)]


def _cuda(group: LockedGroup) -> list[Expectation]:
    cuda, compat = group.components.cuda, group.components.compat
    if cuda is None:
        return []
    role = "cuda_toolkit"
    return [
        Expectation("cuda.packages", {**cuda.closure, **(compat.closure if compat else {})}, role),
        Expectation("cuda.default", f"{CUDA_HOME}-{cuda.default}", role),
        Expectation("cuda.environment", {"CUDA_HOME": CUDA_HOME}, role),
    ]


def _packages(group: LockedGroup, name: str) -> list[Expectation]:
    component = dict(group.components.each()).get(name)
    return [Expectation(f"{name}.packages", component.closure, name)] if component else []


def _nccl(group: LockedGroup) -> list[Expectation]:
    stated = group.setting("nccl")
    if stated is None:
        return []
    return [Expectation("nccl.configuration", {name: str(value) for name, value in stated.items()}, "nccl")]
