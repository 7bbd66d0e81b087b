"""Variables of `fabric_manager`, `cuda_toolkit`, `cudnn` and `nccl`."""

from __future__ import annotations

from typing import Any

from gpuprov.lock import Component, LockedGroup


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
        "cuda_toolkit_unwanted": _unwanted(group, "cuda"),
        "cudnn_unwanted": _unwanted(group, "cudnn"),
        "nccl_unwanted": _unwanted(group, "nccl"),
        "nccl_configuration": group.setting("nccl"),
    }


def _closure(component: Component | None) -> dict[str, str]:
    return component.closure if component else {}


def _version(component: Component | None) -> str | None:
    return component.version if component else None


def _unwanted(group: LockedGroup, name: str) -> list[str]:
    """Expressions of `name=version` for what shall not be there."""
    pattern = group.components.absent.get(name)
    return [f"{pattern}="] if pattern else []
