"""CUDA toolkits, several side by side, and what logins know of the default one."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, unwanted, version
from gpuprov.roles.expectation import Expectation

CUDA_LINK = "/etc/alternatives/cuda"
"""Where /usr/local/cuda leads, by Debian's alternatives."""
CUDA_PROFILE = "/etc/profile.d/gpuprov-cuda.sh"
CUDA_HOME = "/usr/local/cuda"


def expectations(group: LockedGroup) -> list[Expectation]:
    """Packages, the default toolkit, and the environment of logins."""
    cuda, compat = group.components.cuda, group.components.compat
    if cuda is None:
        return []
    role = "cuda_toolkit"
    return [
        Expectation("cuda.packages", {**cuda.closure, **closure(compat)}, role),
        Expectation("cuda.default", f"{CUDA_HOME}-{cuda.default}", role),
        Expectation("cuda.environment", {"CUDA_HOME": CUDA_HOME}, role),
    ]


def variables(group: LockedGroup) -> dict[str, Any]:
    """Packages, forward compatibility's among them, and the default toolkit."""
    cuda, compat = group.components.cuda, group.components.compat
    return {
        "cuda_toolkit_packages": {**closure(cuda), **closure(compat)},
        "cuda_toolkit_version": version(cuda),
        "cuda_toolkit_default": cuda.default if cuda else None,
        "cuda_toolkit_unwanted": unwanted(group, "cuda"),
    }
