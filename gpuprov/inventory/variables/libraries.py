"""Variables of `fabric_manager`, `cuda_toolkit`, `cudnn` and `nccl`."""

from __future__ import annotations

from typing import Any

from gpuprov.inventory.variables.unwanted import unwanted
from gpuprov.model.lock import Component, LockedGroup


def libraries(group: LockedGroup) -> dict[str, Any]:
    """Versions and packages; a component that is not locked has none."""
    components = group.components
    cuda, compat = components.cuda, components.compat
    return {
        "fabric_manager_version": _version(components.fabricmanager),
        "cuda_toolkit_packages": {**_closure(cuda), **_closure(compat)},
        "cuda_toolkit_version": _version(cuda),
        "cuda_toolkit_default": cuda.default if cuda else None,
        "cudnn_version": _version(components.cudnn),
        "cudnn_packages": _closure(components.cudnn),
        "nccl_version": _version(components.nccl),
        "nccl_packages": _closure(components.nccl),
        "cuda_toolkit_unwanted": unwanted(group, "cuda"),
        "cudnn_unwanted": unwanted(group, "cudnn"),
        "nccl_unwanted": unwanted(group, "nccl"),
        "nccl_configuration": group.setting("nccl"),
    }


def _closure(component: Component | None) -> dict[str, str]:
    return component.closure if component else {}


def _version(component: Component | None) -> str | None:
    return component.version if component else None
